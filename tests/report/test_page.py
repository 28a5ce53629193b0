"""The page in a real browser."""

import base64
import json
import re

import pytest

from probes.small import small
from report.conftest import HOSTILE
from retinoscope.probes.attention import Attention
from retinoscope.report.build import build_report
from retinoscope.report.collect import Collected
from retinoscope.run.run import Run


@pytest.fixture
def opened(browser, tmp_path):
    """Open a report; everything it asks for and complains of is recorded."""
    pages = []

    def open_page(folder):
        path = build_report([folder], tmp_path / "report.html")
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        pages.append(page)
        page.requests, page.complaints = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield open_page
    for page in pages:
        page.close()


def asked_of_others(page):
    return [url for url in page.requests if not url.startswith(("file:", "data:"))]


def test_opens_without_complaint_and_without_any_request(opened, measured):
    page = opened(measured)
    assert page.complaints == []
    assert asked_of_others(page) == []
    assert len(page.requests) == 1
    assert page.locator(".panels svg.chart").count() == 10  # five figures of two subjects
    assert page.locator(".together svg.chart").count() == 5  # and in one chart each
    assert "untrained" not in page.locator("main").inner_text().lower()


def test_hovering_a_curve_shows_unit_and_value(opened, measured):
    page = opened(measured)
    chart = page.locator("svg.chart").first
    point = chart.locator(".point").nth(3)
    label = point.get_attribute("data-label")
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert page.locator("#tip").is_hidden()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = page.locator("#tip")
    assert tip.is_visible()
    shown = tip.inner_text()
    assert shown == label
    unit, kind, value = shown.split(" · ")
    from retinoscope.report.collect import collect

    first = collect([measured]).examined[0].measured[0].result
    place = first.units.index(unit)
    assert kind == first.kinds[place]
    number = float(value.split(" at ")[0].replace("−", "-"))
    assert number in [float(f"{v:.4g}") for v in first.log_amplitude[place]]
    page.mouse.move(2, 2)
    assert tip.is_hidden()


def test_curves_of_all_models_in_one_chart_by_choice(opened, measured):
    page = opened(measured)
    row = page.locator(".row").first
    joint, panels = row.locator(".together"), row.locator(".panels")
    assert (joint.is_visible(), panels.is_visible()) == (False, True)
    row.get_by_label("together").check()
    assert (joint.is_visible(), panels.is_visible()) == (True, False)
    assert page.locator(".row .panels").nth(1).is_visible()  # a choice for each figure
    joint.locator("polyline").first.hover(force=True)
    page.wait_for_selector("#tip:not([hidden])")
    assert re.match(r"(tiny|other) · ", page.locator("#tip").inner_text())
    row.get_by_label("side by side").check()
    assert (joint.is_visible(), panels.is_visible()) == (False, True)
    assert page.complaints == []


def test_hovering_depth_and_anatomy_too(opened, measured):
    page = opened(measured)
    for where in ("svg.anatomy .point", "section#fourier-0 .panels >> nth=1 >> .point"):
        point = page.locator(where).nth(2)
        point.scroll_into_view_if_needed()
        point.hover(force=True)
        assert page.locator("#tip").inner_text() == point.get_attribute("data-label")


def test_a_click_sorts_a_table(opened, measured):
    page = opened(measured)
    table = page.locator("#everything table").first
    head = table.locator("th").nth(1)
    head.click()
    up = table.locator("tbody td:nth-child(2)").all_inner_texts()
    head.click()
    down = table.locator("tbody td:nth-child(2)").all_inner_texts()
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert set(up) == {"fourier", "variance"}


def test_data_can_be_taken_from_the_page(opened, measured):
    page = opened(measured)
    links = page.locator("a[download]")
    kinds = {}
    for place in range(links.count()):
        name, address = (links.nth(place).get_attribute(a) for a in ("download", "href"))
        content = base64.b64decode(address.partition("base64,")[2]).decode()
        kinds.setdefault(name.rpartition(".")[2], []).append(content)
    assert all(text.startswith("<svg") for text in kinds["svg"])
    assert kinds["csv"][0].startswith("unit,kind,frequency (π rad/px),Δ log amplitude")
    results = [json.loads(text) for text in kinds["json"]]
    assert {"fourier", "variance"} <= {r.get("probe") for r in results}
    with page.expect_download() as download:
        page.locator("a[download$='.csv']").first.click()
    assert download.value.suggested_filename == "fourier-log_amplitude-0.csv"


def test_hostile_names_stay_text(opened, hostile):
    page = opened(hostile)
    assert page.complaints == []
    assert asked_of_others(page) == []
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0
    assert "pwned" not in page.title().replace(HOSTILE[0], "").replace(HOSTILE[1], "")
    text = page.locator("main").inner_text()
    for name in HOSTILE[:2]:
        assert name in text
    assert "{{ 7 * 7 }}" in text
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200  # long names wrap
    table = page.locator("#everything").inner_text()
    assert HOSTILE[0] in table  # as an image that was set aside


def test_narrow_screens_and_paper(opened, measured):
    page = opened(measured)
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert re.search("variance", page.locator("main").inner_text(), re.IGNORECASE)


@pytest.fixture
def geometry(tmp_path):
    """A page with maps and surfaces of results that were made by hand."""
    from report.test_figures_geometry import hessian, landscape, subject, trajectory
    from retinoscope.report.build import render

    path = tmp_path / "geometry.html"
    results = hessian(), landscape(), trajectory()
    path.write_text(render(Collected([subject(HOSTILE[1], *results), subject("two", *results)])))
    return path.as_uri()


def test_a_surface_turns_with_pointer_and_keys(browser, geometry):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(geometry)

    def picture():
        page.evaluate("() => new Promise(requestAnimationFrame)")  # drawn once a frame
        return canvas.evaluate("canvas => canvas.toDataURL()")

    canvas = page.locator("canvas.surface").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    first = picture()
    page.mouse.move(box["x"] + 80, box["y"] + 80)
    assert picture() == first  # only a drag turns it
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 80, steps=3)
    page.mouse.up()
    turned = picture()
    assert turned != first
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    assert picture() == turned
    canvas.focus()
    page.keyboard.press("ArrowRight")
    one = picture()
    assert one != turned
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    assert picture() not in (one, turned)
    assert page.locator("canvas.surface").count() == 4
    assert complaints == []
    page.close()


def test_pointing_at_a_map_tells_its_cell_also_on_narrow_screens(browser, geometry):
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(geometry)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    chart = page.locator("svg.heat").first
    for place in (60, 120):  # the centre, and the corner that is not finite
        cell = chart.locator(".point").nth(place)
        cell.hover()
        assert page.locator("#tip").inner_text() == cell.get_attribute("data-label")
    assert page.locator("#tip").inner_text().endswith("· not finite")
    page.emulate_media(media="print")
    assert page.locator("canvas.surface").first.is_visible()
    page.close()


def test_without_a_script_the_map_stands_alone(browser, geometry):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(geometry)
    assert page.locator("svg.heat").first.is_visible()
    assert page.locator("canvas.surface").first.is_hidden()
    context.close()


def test_a_selector_shows_one_head_at_a_time(opened, tmp_path):
    run = Run(tmp_path / "run")
    run.measure(Attention(maps=1), small("vit"))
    run.files.close()
    page = opened(tmp_path / "run")
    assert page.complaints == []
    figure = page.locator("figure", has=page.locator("select.choices"))
    groups = figure.locator("g.choice")

    def visible():
        return [k for k in range(groups.count()) if groups.nth(k).is_visible()]

    assert groups.count() == 4
    assert visible() == [0]
    figure.locator("select.choices").select_option("head 1")
    assert visible() == [2]
    assert figure.locator("use").count() == 2, "the image lies below the maps of both units"
    point = groups.nth(2).locator(".point").first
    assert point.get_attribute("data-label").endswith("· head 1")
