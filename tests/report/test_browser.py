"""The page drawn and driven by headless Chromium."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedomg.report.html import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = [
    "--headless",
    "--no-sandbox",  # needed where the tests run as root, as in a container
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--enable-logging=stderr",
    "--window-size=1280,900",
    "--virtual-time-budget=4000",
    "--dump-dom",
]

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")]

WriteRun = Callable[..., Path]


def opened(page: Path, profile: Path) -> str:
    """The document after its scripts have run; fails where the console is not empty."""
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    root = re.search(r"<html[^>]*>", done.stdout)
    assert root
    assert "data-errors" not in root[0]
    assert 'data-ready="true"' in root[0]
    return done.stdout


def driven(page: Path, profile: Path, script: str) -> Any:
    """What `script` returns when it runs in the page."""
    probe = f"<script>document.body.dataset.probe = JSON.stringify((() => {{ {script} }})());</script>"
    copy = page.with_name("driven.html")
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{probe}</body>"), encoding="utf-8")
    found = re.search(r'data-probe="([^"]*)"', opened(copy, profile))
    assert found
    return json.loads(html.unescape(found[1]))


@pytest.fixture
def page(write_run: WriteRun, tmp_path: Path) -> Path:
    runs = [
        write_run(f"{method}-{target}-{seed}", method, target=target, seed=seed, start=0.1 + seed / 10 + 0.05 * ("omg" in method))
        for method in ("fedavg", "fedavg+omg")
        for target in ("line", "noto")
        for seed in (0, 1)
    ]
    return write_report(runs, tmp_path / "report.html", baselines={"always the largest class": {"target": 0.2}})


def test_draws_every_chart_without_an_error(page: Path, tmp_path: Path) -> None:
    charts = {
        "curves": 2,  # one for each target
        "domains": 2,
        "weights": 2,  # one for each client
        "cosines": 1,
        "agreement": 4,
    }
    counted = driven(
        page,
        tmp_path / "profile",
        f"return Object.fromEntries({json.dumps(list(charts))}.map((id) => [id, document.querySelectorAll(`#${{id}} svg.chart`).length]));",
    )
    assert counted == charts


def test_filters_sorting_and_rules(page: Path, tmp_path: Path) -> None:
    found = driven(
        page,
        tmp_path / "profile",
        """
        const rows = () => [...document.querySelectorAll("#summary tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
        const choose = (name, value) => {
          const select = document.querySelector(`select[name=${name}]`);
          select.value = value;
          select.dispatchEvent(new Event("change"));
        };
        const click = (selector) => document.querySelector(selector).click();
        const seen = { start: rows() };
        choose("target", "1");
        seen.scope = rows().map((row) => row[1]);
        click('.chip[data-method="fedavg"]');
        seen.method = rows().map((row) => row[0]);
        click("#show-all");
        choose("target", "all");
        choose("seed", "1");
        seen.seed = rows().map((row) => row.at(-1));
        choose("seed", "all");
        click('#summary [data-sort="target"]');
        seen.descending = rows().map((row) => row[2]);
        click('#summary [data-sort="target"]');
        seen.ascending = rows().map((row) => row[2]);
        click('#summary-controls [data-value="runs"]');
        seen.runs = rows().length;
        click('#summary-controls [data-value="best"]');
        seen.caption = document.querySelector("#summary-caption").textContent;
        click('#curves-controls [data-value="loss"]');
        click('#curves-controls [data-value="worst_group"]');
        click('#curves-controls [name="each-seed"]');
        seen.faint = document.querySelectorAll("#curves .faint").length;
        choose("run", "0");
        seen.weights = document.querySelector("#weights-caption").textContent;
        return seen;
        """,
    )
    assert [row[:3] for row in found["start"]] == [
        ["fedavg", "line", "45.0 ± 7.1"],
        ["fedavg+omg", "line", "50.0 ± 7.1"],
        ["fedavg", "noto", "45.0 ± 7.1"],
        ["fedavg+omg", "noto", "50.0 ± 7.1"],
    ]
    assert found["scope"] == ["noto", "noto"]
    assert found["method"] == ["fedavg+omg"]
    assert found["seed"] == ["1"] * 4
    assert found["descending"] == ["50.0 ± 7.1"] * 2 + ["45.0 ± 7.1"] * 2
    assert found["ascending"] == found["descending"][::-1]
    assert found["runs"] == 8
    assert found["caption"].startswith("Oracle, not for headlines")
    assert found["faint"] == 8
    assert "without OMG" in found["weights"]


def test_text_and_choices_narrow_table_charts_and_runs(write_run: WriteRun, tmp_path: Path) -> None:
    runs = [
        write_run(f"{method}-{dataset}-{target}", method, dataset=dataset, target=target, settings=f"[data]\nalpha = {len(target or '')}\n")
        for method in ("fedavg", "fedavg+omg", "fedsam")
        for dataset, target in (("pacs", "photo"), ("pacs", "sketch"), ("mnist", None))
    ]
    found = driven(
        write_report(runs, tmp_path / "report.html"),
        tmp_path / "profile",
        """
        const text = (selector) => [...document.querySelectorAll(selector)].map((node) => node.textContent);
        const shown = () => ({
          rows: [...document.querySelectorAll("#summary tbody tr")].map((row) => [row.cells[0].textContent, row.cells[1].textContent]),
          curves: document.querySelectorAll("#curves svg.chart").length,
          runs: document.querySelectorAll("#runs details").length,
        });
        const choose = (name, value) => {
          const select = document.querySelector(`#filters select[name=${name}]`);
          select.value = value;
          select.dispatchEvent(new Event("change"));
        };
        const type = (value) => {
          const input = document.querySelector("#filters input[name=text]");
          input.value = value;
          input.dispatchEvent(new Event("input"));
        };
        const options = (name) => text(`#filters select[name=${name}] option`);
        const seen = { start: shown(), methods: options("method"), targets: options("target") };
        type("OMG sket");
        seen.typed = shown();
        type("nothing of this");
        seen.nothing = [shown(), document.querySelector("#curves").textContent];
        type("");
        choose("dataset", "1");
        seen.dataset = shown();
        choose("target", "0");
        seen.empty = shown().rows.length;
        choose("dataset", "all");
        choose("target", "all");
        choose("method", "2");
        seen.method = shown();
        seen.pressed = document.querySelectorAll('.chip[aria-pressed="true"]').length;
        choose("method", "all");
        seen.again = shown().rows.length;
        return seen;
        """,
    )
    assert len(found["start"]["rows"]) == 9
    assert found["start"]["runs"] == 9
    assert found["methods"] == ["all", "fedavg", "fedavg+omg", "fedsam"]
    assert found["targets"] == ["all", "photo", "sketch", "no unseen domain"]
    assert found["typed"] == {"rows": [["fedavg+omg", "pacs: sketch"]], "curves": 1, "runs": 1}
    assert found["nothing"] == [{"rows": [], "curves": 0, "runs": 0}, "Nothing to show with these filters."]
    assert [row[1] for row in found["dataset"]["rows"]] == ["mnist: no unseen domain"] * 3
    assert found["empty"] == 0
    assert [row[0] for row in found["method"]["rows"]] == ["fedsam"] * 3
    assert found["pressed"] == 1
    assert found["again"] == 9


def test_few_clients_as_lines_or_heat_maps(page: Path, tmp_path: Path) -> None:
    found = driven(
        page,
        tmp_path / "profile",
        """
        const heat = () => ["weights", "cosines"].map((id) => document.querySelectorAll(`#${id} .heat`).length > 0);
        const before = heat();
        document.querySelector('#weights-controls [data-value="heat"]').click();
        return [before, heat(), document.querySelectorAll("#weights svg.chart").length];
        """,
    )
    assert found == [[False, False], [True, True], 2]


def test_comparisons_configuration_and_environment(page: Path, tmp_path: Path) -> None:
    found = driven(
        page,
        tmp_path / "profile",
        """
        const cells = (selector) => [...document.querySelectorAll(selector)].map((row) => [...row.cells].map((cell) => cell.textContent));
        const seen = { noise: cells("#comparisons tbody tr"), settings: cells("#settings table:not(details table) tbody tr") };
        seen.shared = cells("#shared tbody tr");
        document.querySelector('.chip[data-method="fedavg"]').click();
        seen.hidden = document.querySelector("#noise").hidden;
        return seen;
        """,
    )
    assert found["noise"] == [["fedavg+omg", "fedavg", "4", "+5.0", "0.125", "too few pairs to tell: at least 6 are needed"]]
    assert found["settings"] == [["seed", "0 (4 runs), 1 (4 runs)"], ["fedomg", "0.1.0"], ["torch", "2.13.0"]]
    assert found["shared"] == [["rounds", "3"]]
    assert found["hidden"] is True


def test_tooltips_follow_pointer_and_keys(page: Path, tmp_path: Path) -> None:
    found = driven(
        page,
        tmp_path / "profile",
        """
        const chart = document.querySelector("#curves svg.chart");
        const box = chart.querySelector(".catch").getBoundingClientRect();
        const event = new PointerEvent("pointermove", { clientX: box.left + box.width / 3, clientY: box.top + 20 });
        chart.querySelector(".catch").dispatchEvent(event);
        const tip = document.getElementById("tip");
        const pointed = tip.textContent;
        chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
        const moved = tip.textContent;
        chart.dispatchEvent(new FocusEvent("blur"));
        return [pointed, moved, tip.hidden];
        """,
    )
    assert found[0].startswith("Round 1")
    assert "fedavg+omg" in found[0]
    assert found[1].startswith("Round 2")
    assert found[2] is True


def test_hostile_names_stay_text(write_run: WriteRun, tmp_path: Path) -> None:
    evil = '</script><img src=x onerror="document.title=1">'
    run = write_run("a", evil, target=evil, settings=f"# {evil}\n")
    page = write_report([run], tmp_path / "report.html", title=evil)
    images, title = driven(page, tmp_path / "profile", 'return [document.querySelectorAll("img").length, document.title];')
    assert (images, title) == (0, evil)


def test_many_clients_become_heat_maps(write_run: WriteRun, tmp_path: Path) -> None:
    clients = {
        str(client): {"name": f"c{client}", "cosine": client / 50 - 1, "reference_weight": 0.01, "omg_weight": client / 4950}
        for client in range(100)
    }
    records = [{"round": round_, "views": {}, "clients": clients} for round_ in (1, 2)]
    page = write_report([write_run("a", "fedavg+omg", rounds=2, records=records)], tmp_path / "report.html")
    script = 'return ["weights", "cosines"].map((id) => document.querySelectorAll(`#${id} .heat`).length > 1);'
    assert driven(page, tmp_path / "profile", script) == [True, True]


@pytest.mark.parametrize("records", [[{"round": 0}], [{"round": 1, "views": {"target": {"accuracy": None, "loss": None, "n": 5}}}]])
def test_runs_with_almost_nothing_in_them(write_run: WriteRun, tmp_path: Path, records: list[dict[str, Any]]) -> None:
    run = write_run("a", records=records)
    (run / "result.json").unlink()
    (run / "config.toml").unlink()
    opened(write_report([run], tmp_path / "report.html"), tmp_path / "profile")


def test_without_a_held_out_domain_clients_are_no_source_domains(write_run: WriteRun, tmp_path: Path) -> None:
    page = write_report([write_run("a", "fedavg", target=None)], tmp_path / "report.html")
    heads, caption = driven(
        page,
        tmp_path / "profile",
        """
        const heads = [...document.querySelectorAll("#summary thead th")].map((cell) => cell.textContent.trim());
        return [heads, document.querySelector("#summary-caption").textContent];
        """,
    )
    assert "Global model" in heads
    assert "Source domains" not in heads
    assert "unseen" not in caption
