"""`gpuzarr doctor` on the simulated device and on a host without one: what it prints, writes, keeps and exits with."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.simulated.in_use import in_use
from helpers.simulated.planted_faults import Fault, FaultyDevice

import xarray_gpuzarr
from xarray_gpuzarr import GpuZarrWarning, read_array
from xarray_gpuzarr.cli import doctor as command
from xarray_gpuzarr.cli import main, parser
from xarray_gpuzarr.cuda import driver
from xarray_gpuzarr.cuda.api import DeviceIdentity
from xarray_gpuzarr.decoders import choice
from xarray_gpuzarr.decoders.cuda.checks.self_checks import CheckResult
from xarray_gpuzarr.errors import CudaError, DeviceUnavailableError, OptionError
from xarray_gpuzarr.machine.diagnosis import examine, machine, rates
from xarray_gpuzarr.machine.diagnosis.rates import CODECS, Sizes, host_rates, seconds_of
from xarray_gpuzarr.machine.diagnosis.report import Diagnosis, Section, without_names
from xarray_gpuzarr.machine.diagnosis.samples import COMPRESSORS, sample_of
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.read import reading

VERSIONS = {"CuPy": "14.0", "RMM": "26.10", "nvCOMP": "6.0.0", "CUDA runtime": "13.0"}
UUID = "GPU-11111111-2222-3333-4444-555555555555"


IDENTITY = DeviceIdentity(name="a simulator", uuid=UUID, compute_capability="9.0", driver="580.1", versions=VERSIONS)


def answer(name, found=""):
    """Return what a check of 1 MB gives after 2 ms."""
    return CheckResult(name=name, found=found, seconds=2e-3, nbytes=10**6)


TINY = Sizes(copied_nbytes=65_536, chunk_nbytes=4096, n_chunks=2)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache folder of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XARRAY_GPUZARR_CACHE_DIR", str(folder))
    monkeypatch.setenv("COLUMNS", "200")
    return folder


@pytest.fixture
def host(monkeypatch):
    """A machine with nothing for GPUs."""
    missing = ["the NVIDIA driver (libcuda)", "CuPy"]
    for module in (machine, choice):
        monkeypatch.setattr(module, "missing_for_cuda", lambda: missing)
    monkeypatch.setattr(examine, "USUAL_SIZES", TINY)
    monkeypatch.setattr(command, "USUAL_SIZES", TINY)


@pytest.fixture
def gpu(monkeypatch):
    """A simulated GPU that answers rightly, with all that it needs."""
    gpu = in_use(monkeypatch)
    monkeypatch.setattr(gpu.api, "identity", IDENTITY)
    monkeypatch.setattr(rates, "decoder_for", reading.decoder_for)
    monkeypatch.setattr(examine, "find_gpu", lambda *_: gpu.api)
    for module in (machine, choice):
        monkeypatch.setattr(module, "missing_for_cuda", list)
    monkeypatch.setattr(examine, "check_all", lambda api: iter([answer("zstd, short"), answer("lz4")]))
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "1")
    return gpu


def run(*arguments):
    return command.run(parser().parse_args(["doctor", *arguments]), TINY)


# ---- without a GPU


def test_a_host_is_measured_and_told_what_is_missing(host, capsys):
    assert run() == 0

    out = capsys.readouterr().out
    assert "for device='cuda': the NVIDIA driver (libcuda), CuPy" in out
    assert "the NVIDIA driver first, on a machine with a GPU; then pip install 'xarray-gpuzarr[cuda" in out
    assert "decode at once" in out
    assert all(codec in out for codec in CODECS)
    assert out.endswith("All is well.\n")


def test_variables_that_are_no_settings_are_named(host, monkeypatch, capsys):
    monkeypatch.setenv("XARRAY_GPUZARR_CACH_NBYTES", "1 GiB")
    monkeypatch.setenv("XARRAY_GPUZARR_QQ", "secret")
    for name in ("N_SLOTS", "NUM_THREADS", "ENGINE", "CACHE_NBYTES"):  # which are settings
        monkeypatch.setenv(f"XARRAY_GPUZARR_{name}", {"ENGINE": "usual"}.get(name, "2"))

    assert run() == 0

    said = [line.split(None, 1)[1] for line in capsys.readouterr().out.splitlines() if line.startswith("ignored ")]
    assert "XARRAY_GPUZARR_CACH_NBYTES is no setting (perhaps 'CACHE_NBYTES')" in said
    assert "XARRAY_GPUZARR_QQ is no setting" in said
    assert not [
        line for line in said if line.startswith(("XARRAY_GPUZARR_N", "XARRAY_GPUZARR_E", "XARRAY_GPUZARR_CACHE"))
    ]


def test_what_only_a_gpu_answers_cannot_be_asked_here(host, capsys):
    assert main(["doctor", "--device", "cuda"]) == 2
    assert "pip install 'xarray-gpuzarr[cuda13]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("cuda:1", DeviceUnavailableError),
        *(("workers", OptionError), ("nonesuch", OptionError), ("cuda:x", OptionError)),
    ],
)
def test_devices_that_cannot_be_examined(host, device, error):
    with pytest.raises(error):
        xarray_gpuzarr.doctor(device)


def test_the_installed_command_runs_on_this_machine(tmp_path):
    out = tmp_path / "d.json"
    done = subprocess.run(
        [sys.executable, "-m", "xarray_gpuzarr", "doctor", "--device", "host", "--json", str(out)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(xarray_gpuzarr.__file__).parents[1],
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "How fast does the host decode?" in done.stdout
    assert json.loads(out.read_text())["well"]


class Library:
    """The driver's libraries, as far as they are asked: two GPUs, and CUDA 12.4."""

    def cuDriverGetVersion(self, version):  # noqa: N802
        version._obj.value = 12_040
        return 0

    def nvmlInit_v2(self):  # noqa: N802
        return 0

    def nvmlShutdown(self):  # noqa: N802
        return 0

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number, handle):  # noqa: N802
        handle._obj.value = 100 + number.value
        return 0

    def nvmlDeviceGetName(self, handle, text, _):  # noqa: N802
        text.value = f"NVIDIA {handle.value}".encode()
        return 0

    def nvmlSystemGetDriverVersion(self, text, _):  # noqa: N802
        text.value = b"550.1"
        return 0


def test_a_gpu_whose_packages_are_missing_is_named(host, monkeypatch, capsys):
    for module in (machine, choice):
        monkeypatch.setattr(module, "missing_for_cuda", lambda: ["CuPy", "nvCOMP (nvidia-libnvcomp)"])
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda _: Library())

    monkeypatch.setattr(advice, "warned", set())

    with pytest.warns(GpuZarrWarning, match="this machine has a GPU"):
        assert run() == 0

    out = capsys.readouterr().out
    assert "NVIDIA 100, NVIDIA 101" in out
    assert "550.1, CUDA 12.4" in out
    assert "for device='cuda': CuPy, nvCOMP (nvidia-libnvcomp)" in out
    assert "pip install 'xarray-gpuzarr[cuda12]'" in out


# ---- with a GPU


def test_a_gpu_is_described_asked_and_measured(gpu, capsys):
    assert run() == 0

    out = capsys.readouterr().out
    assert "a simulator, compute capability 9.0" in out
    assert "CuPy 14.0, RMM 26.10, nvCOMP 6.0.0" in out
    assert "2 of 2 are right" in out
    assert "lz4 right 2.00 500" in [" ".join(line.split()) for line in out.splitlines()]
    assert "copy within the GPU" in out
    assert "zstd from local files" in out
    assert "How fast does the host decode?" in out
    gpu.api.check()


def test_wrong_answers_are_listed_and_fail(gpu, monkeypatch, capsys):
    wrong = [answer("zstd, short"), answer("gzip", "byte 7 of 100")]
    monkeypatch.setattr(examine, "check_all", lambda _: iter(wrong))

    assert run() == 1

    out = capsys.readouterr().out
    assert "WRONG" in out
    assert "FAILED: gzip: byte 7 of 100" in out
    assert "1 of 2 are right" in out
    assert out.endswith("1 thing went wrong, see above.\n")


def test_answers_are_those_of_the_device():
    section = examine.answers_section(FaultyDevice(Fault("LZ4", "status")))
    assert [failure.partition(":")[0] for failure in section.failures] == ["lz4", "lz4, one byte", "blosc lz4"]
    assert len(section.rows) > 25
    assert {row[1] for row in section.rows} == {"right", "WRONG"}


def test_wrong_values_of_the_gpu_and_of_the_host_are_failures(gpu, monkeypatch):
    monkeypatch.setattr("xarray_gpuzarr.machine.diagnosis.samples.CodecSample.differs", lambda *_: True)

    found = ", ".join(all_failures())

    assert "a read of zstd from local files" in found
    assert "gzip: other values than were stored" in found


def all_failures():
    return Diagnosis(sections=tuple(examine.examine("auto", progress=str, sizes=TINY))).failures


def test_the_gpu_that_is_named_is_examined(gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(examine, "find_gpu", lambda device: asked.append(device) or gpu.api)
    assert run("--device", "cuda:0") == 0
    assert asked == ["cuda:0"]


def test_a_device_that_breaks_is_a_failure_and_the_host_is_measured(gpu, monkeypatch):
    def broken(*_):
        raise CudaError("lost", tried="a copy", found="cudaErrorUnknown", do="restart")

    monkeypatch.setattr(examine, "check_all", broken)
    monkeypatch.setattr(gpu.api, "allocate_pinned", broken)
    assert all_failures() == ("CudaError: lost: cudaErrorUnknown",) * 2

    monkeypatch.setattr(examine, "find_gpu", broken)
    assert all_failures() == ("CudaError: lost: cudaErrorUnknown. To mend it: restart",)


# ---- as a document, as a report, in a notebook


def test_the_document_on_standard_output_is_all_there_is(host, capsys):
    assert run("--json") == 0

    document = json.loads(capsys.readouterr().out)
    assert (document["format"], document["version"], document["well"]) == ("xarray_gpuzarr doctor", 1, True)
    assert document["machine"]["missing_for_cuda"] == ["the NVIDIA driver (libcuda)", "CuPy"]
    assert set(document["host"]) == set(CODECS)


def test_the_document_has_all_that_a_gpu_answers(gpu, tmp_path, capsys):
    out = tmp_path / "d.json"
    assert run("--json", str(out)) == 0
    document = json.loads(out.read_text())
    assert document["machine"]["gpu"]["versions"] == VERSIONS
    assert document["answers"][0]["name"] == "zstd, short"
    assert UUID not in out.read_text()
    assert "Does the GPU decode correctly?" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(host, tmp_path, capsys):
    assert main(["doctor", "--json", str(tmp_path / "no" / "d.json")]) == 2
    assert "--json" in capsys.readouterr().err


def test_a_gpu_that_cannot_be_used_leaves_no_empty_document(host, tmp_path, capsys):
    out = tmp_path / "d.json"

    assert main(["doctor", "--device", "cuda", "--json", str(out)]) == 2

    assert "DeviceUnavailableError" in capsys.readouterr().err
    assert not out.exists()


def test_a_report_is_one_block_without_names(gpu, monkeypatch, capsys):
    monkeypatch.setenv("HOME", "/export/people/alice")
    monkeypatch.setenv("LOGNAME", "alice")
    found = "cannot load /export/people/alice/env/lib.so, /scratch/alice/x, /opt/malice/alice-1"
    monkeypatch.setattr(examine, "check_all", lambda _: iter([answer("a", found)]))

    assert run("--report") == 1

    out = capsys.readouterr().out
    assert out.startswith("```text\ngpuzarr doctor, 2")
    assert out.endswith("```\n")
    assert "cannot load ~/env/lib.so, /scratch/user/x, /opt/malice/alice-1" in out
    assert "people" not in out
    assert UUID not in out


def test_names_are_left_out_of_documents(monkeypatch):
    monkeypatch.setenv("HOME", "/home/bob")
    monkeypatch.setenv("LOGNAME", "bob")
    told = {"/home/bob/x": ["/home/bobby", "/data/bob", 3, None, "bob"]}
    assert without_names(told) == {"~/x": ["/home/bobby", "/data/user", 3, None, "bob"]}


def test_who_has_no_name_is_not_looked_for(monkeypatch):
    def nobody():
        raise KeyError("uid not found")

    monkeypatch.setattr("xarray_gpuzarr.machine.diagnosis.report.getpass.getuser", nobody)
    assert without_names("/data/bob") == "/data/bob"


def test_a_notebook_shows_it(host):
    found = xarray_gpuzarr.doctor()

    assert repr(found).startswith("What is here\n  reads go to")
    assert "codec " in repr(found)
    assert "<h4>How fast does the host decode?</h4>" in found._repr_html_()
    assert found.document["well"]


def test_what_is_shown_is_no_markup_and_no_control_code():
    found = Diagnosis(sections=(Section(name="a", title="T", rows=[("<b>", "\x1b[1m")], failures=["<i>"]),))
    assert "\x1b" not in str(found)
    assert "<b>" not in found._repr_html_()
    assert "<i>" not in found._repr_html_()
    assert found.failures == ("<i>",)


# ---- samples and clocks


@pytest.mark.parametrize("codec", COMPRESSORS)
def test_samples_are_what_zarr_reads(codec):
    with sample_of(codec, chunk_nbytes=1024, n_chunks=20) as sample:
        expected = np.resize(sample.tiles, 20 * 256)
        np.testing.assert_array_equal(sample.array[:], expected, strict=True)
        np.testing.assert_array_equal(read_array(sample.array, device="host"), expected, strict=True)
        assert not sample.differs(expected[: 5 * 256], 5)
        assert sample.differs(expected[: 5 * 256], 6)
        assert sample.differs(expected[256 : 6 * 256], 5)
        assert sample.differs(expected.astype("f8"), 20)


def test_host_rates_leave_the_number_of_threads_as_it_was(monkeypatch):
    with sample_of("zstd", chunk_nbytes=1024, n_chunks=4) as sample:
        monkeypatch.delenv("XARRAY_GPUZARR_NUM_THREADS", raising=False)
        assert host_rates(sample).alone > 0
        assert "XARRAY_GPUZARR_NUM_THREADS" not in os.environ
        monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "2")
        host_rates(sample)
        assert os.environ["XARRAY_GPUZARR_NUM_THREADS"] == "2"


def test_what_is_timed_runs_once_more_than_it_counts():
    ran = []
    assert seconds_of(lambda: ran.append(1), budget_s=60, max_calls=3) >= 0
    assert len(ran) == 4
    ran.clear()
    seconds_of(lambda: ran.append(1), budget_s=0)
    assert len(ran) == 2
