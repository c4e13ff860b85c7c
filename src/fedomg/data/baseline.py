"""What an answer that looks at no picture scores."""

import torch

from fedomg.data.federation import Federation


def largest_class(federation: Federation) -> tuple[str, dict[str, float]]:
    """The largest class of the clients' training data, and the accuracy of always answering it, by view."""
    training = torch.cat([client.train.labels for client in federation.clients])
    label = int(training.bincount().argmax())

    def share(labels: torch.Tensor) -> float:
        return float((labels == label).double().mean())

    tests = [client.test for client in federation.clients if len(client.test)]
    domains: dict[int, list[torch.Tensor]] = {}
    for test in tests:
        for domain in test.dataset.domains[test.indices].unique().tolist():
            domains.setdefault(domain, []).append(test.labels[test.dataset.domains[test.indices] == domain])
    scores = {
        "global": share(torch.cat([test.labels for test in tests])),
        "worst_group": min(share(torch.cat(d)) for d in domains.values()),
    }
    if federation.target is not None:
        scores["target"] = share(federation.target.test.labels)
    return federation.dataset.class_names[label], scores
