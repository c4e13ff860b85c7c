"""FedAvg: local SGD, then the mean of the clients' models weighted by their numbers of examples.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from fedomg.methods.method import Entry

METHOD = Entry("fedavg", "local SGD, mean of the models weighted by examples", "McMahan et al., AISTATS 2017")
