"""What an issue asks for can be had: the commands and targets that the templates name exist."""

import re
from pathlib import Path

import pytest
import yaml

from xarray_gpuzarr.cli import parser

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*_*.yml"))


def asked(template):
    """Return what a template says below the boxes to fill in."""
    body = yaml.safe_load(template.read_text())["body"]
    return {box["id"]: box["attributes"]["description"] for box in body if box["type"] == "textarea"}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_reports_bring_what_the_doctor_says(template):
    command = re.search(r"`gpuzarr (doctor .*--report)`", asked(template)["report"])[1]

    assert parser().parse_args(command.split()).report


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_named_commands_and_targets_exist(template):
    text = " ".join(asked(template).values())

    for command in re.findall(r"`gpuzarr ([^`]*)`", text):
        parser().parse_args(command.split())
    makefiles = (ROOT / "Makefile").read_text() + (ROOT / "gpu.mk").read_text()
    targets = re.findall(r"^([a-z-]+):", makefiles, re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= set(targets)
