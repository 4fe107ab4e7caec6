"""The command ``gpuzarr``: what it prints, where, and the status it exits with."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import shtab
import xarray as xr
import zarr
from helpers.every_pair import usually
from helpers.simulated.in_use import in_use
from zarr.errors import ZarrUserWarning

from xarray_gpuzarr import cli
from xarray_gpuzarr.cli import demo, info, lengths_of_files, main, sample
from xarray_gpuzarr.cli.sample import shard_layout, write_sharded
from xarray_gpuzarr.errors import DeviceUnavailableError
from xarray_gpuzarr.process import advice

PACKED = {
    "dtype": "i2",
    "scale_factor": 0.5,
    "add_offset": 3.0,
    "_FillValue": -1,
    "chunks": (1, 6, 8),
    "shards": (24, 6, 8),
    "compressors": None,
}


@pytest.fixture(autouse=True)
def _narrow_terminal_and_one_round(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(demo, "ROUNDS", 1)


@pytest.fixture
def path(tmp_path):
    """A local store with one packed, sharded, uncompressed variable and a group below."""
    path = tmp_path / "s.zarr"
    field = (("time", "y", "x"), np.arange(48 * 6 * 8.0).reshape(48, 6, 8))
    xr.Dataset({"t": field}).to_zarr(path, consolidated=False, encoding={"t": PACKED})
    xr.Dataset({"below": ("x", np.arange(8.0))}).to_zarr(path, group="sub", mode="a", consolidated=False)
    with pytest.warns(ZarrUserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(path)
    return str(path)


def test_info_shows_layout_codecs_route_and_bytes(path, capsys):
    assert main(["info", path, "--device", "host"]) == 0

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    index_nbytes = 24 * 16 + 4
    on_disk = 2 * (24 * 6 * 8 * 2 + index_nbytes) + Path(path, "t/zarr.json").stat().st_size
    assert lines[0] == f"{path}, group /, Zarr format 3"
    assert lines[1:3] == ["groups below it (gpuzarr info STORE --group PATH):", "sub  1 array, 64 B decompressed"]
    assert " ".join(lines[6].split()) == "t int16 → float64 2 shards of 24\u00d76\u00d78 host"
    assert "48 chunks of 1\u00d76\u00d78" in lines[7]
    assert "bytes(little)" in lines[8]
    assert "mask -1, * 0.5, + 3" in lines[9]
    assert lines[-1].split() == ["t", *f"{on_disk / 1000:.3g} kB 4.61 kB 18.4 kB 9.22 kB".split()]


def last_table(out):
    """Return the title of the last column, and the cells of the only row, of the last table that was printed."""
    head, _, row = [line.strip() for line in out.splitlines()][-3:]
    return head.split("  ")[-1].strip(), row.split()


PEAK = 24 * 6 * 8 * 8 + 24 * 2 * 6 * 8 * 2 + 3 * 256 * 1024
"""Memory that a task takes on a GPU, in bytes: its result, two bytes and two for each element, and tables."""
ON_A_GPU = ["t", *f"9.22 kB 4.61 kB {PEAK / 1e3:.3g} kB 3".split()]


def test_info_says_what_a_task_takes_on_a_gpu_of_a_given_size(path, capsys):
    assert main(["info", path, "--device", "host", "--gpu-memory", "24 GiB"]) == 0

    assert last_table(capsys.readouterr().out) == ("at once in 24 GiB", ON_A_GPU)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_info_says_what_a_task_takes_on_the_gpu_that_it_is_read_to(path, capsys, monkeypatch, device):
    gpu = in_use(monkeypatch)
    monkeypatch.setattr(info, "find_gpu", {device: gpu.api}.__getitem__)

    assert main(["info", path, "--device", device, "--gpu-memory", "1 GiB"]) == 0
    _, cells = last_table(capsys.readouterr().out)
    assert main(["info", path, "--device", device]) == 0
    assert last_table(capsys.readouterr().out) == ("at once in 1.07 GB", cells)
    assert main(["info", path, "--device", device, "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["gpu_nbytes"] == 2**30


def test_info_of_what_the_host_reads_shows_no_gpu(path, capsys):
    assert main(["info", path, "--device", "host"]) == 0
    assert last_table(capsys.readouterr().out)[0] == "one task gives"
    assert main(["info", path, "--device", "host", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["gpu_nbytes"] is None
    assert document["variables"][0]["task_shape"] == [24, 6, 8]
    assert document["variables"][0]["task_device_nbytes"] is None
    assert document["variables"][0]["n_tasks_at_once"] is None


def test_info_of_a_gpu_that_does_not_start_warns_and_shows_the_rest(path, capsys, monkeypatch):
    in_use(monkeypatch)
    monkeypatch.setattr(advice, "warned", set())

    def find_gpu(_device):
        raise DeviceUnavailableError("CuPy cannot be imported", tried="import cupy", found="no libcudart", do="repair")

    monkeypatch.setattr(info, "find_gpu", find_gpu)

    assert main(["info", path, "--device", "cuda"]) == 0

    out, err = capsys.readouterr()
    assert last_table(out)[0] == "one task gives"
    assert err.splitlines() == [
        "GpuZarrWarning: the memory of the GPU is unknown, so what tasks take of it is not shown",
        "  found: CuPy cannot be imported: no libcudart",
        '  do:    give its size, as in --gpu-memory "24 GB"; gpuzarr doctor examines the GPU',
    ]


@pytest.mark.parametrize(("size", "n"), [("80 GB", 3), ("1.075 GB", 2), ("1.07 GB", 0)])
def test_info_says_how_many_tasks_read_at_once(path, capsys, size, n):
    assert main(["info", path, "--gpu-memory", size, "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["variables"][0]["n_tasks_at_once"] == n


def test_info_of_chunks_that_no_such_gpu_decodes(path, capsys):
    assert main(["info", path, "--gpu-memory", "0.7 kB"]) == 0

    assert " ".join(capsys.readouterr().out.splitlines()[-1].split()) == "t a chunk does not fit 0"


def test_info_does_not_count_very_many_files(path, capsys, monkeypatch):
    monkeypatch.setattr(lengths_of_files, "MOST_FILES", 1)

    assert main(["info", path]) == 0

    assert "not counted" in capsys.readouterr().out


def test_info_of_a_store_that_is_not_local_counts_nothing(tmp_path, capsys):
    url = f"memory://{tmp_path.name}/s.zarr"
    write_sharded(xr.Dataset({"t": ("x", np.arange(8.0))}), url)

    assert main(["info", url]) == 0

    assert "not counted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "name", "found"),
    [
        (["info", "{tmp}/none.zarr"], "NoGroupError", "nothing is there (FileNotFoundError"),
        (["info", "{tmp}"], "NoGroupError", "no zarr.json or .zgroup"),
        (["info", "{tmp}/s.zarr", "--group", "none"], "NoGroupError", "none"),
        (["info", "{tmp}/s.zarr", "--device", "tpu"], "OptionError", "valid options:"),
        (["info", "{tmp}/s.zarr", "--gpu-memory", "much"], "OptionError", "not a size"),
        (["demo", "--dir", "{tmp}/s.zarr/zarr.json"], "OptionError", "FileExistsError"),
        (["demo", "--dir", "/proc/self"], "OptionError", "/proc/self/"),
        (
            ["demo", "--dir", "{tmp}", "--source", "{tmp}/none.nc"],
            "NoGroupError",
            "nothing is there (FileNotFoundError",
        ),
        (["demo", "--dir", "{tmp}", "--device", "tpu"], "OptionError", "valid options:"),
    ],
)
def test_failure_is_three_lines_on_stderr_and_status_2(path, tmp_path, capsys, arguments, name, found):
    assert path.startswith(str(tmp_path))

    assert main([argument.format(tmp=tmp_path) for argument in arguments]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{name}: ")
    assert "Traceback" not in err
    assert [line.split(":")[0].strip() for line in err.splitlines()[1:]] == ["tried", "found", "do"]
    assert found in err.splitlines()[2]


def test_demo_writes_compares_measures_explains_and_draws(tmp_path, capsys):
    assert main(["demo", "--size", "small", "--dir", str(tmp_path), "--device", "host"]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert 'equal   values, dtypes and attributes are those of engine="zarr"' in out
    tasks = {line[:28].strip(): int(line[28:].split()[0]) for line in out.splitlines() if line.startswith("engine=")}
    assert tasks == {
        'engine="zarr", chunks={}': 4 * 48 + 1,
        'engine="zarr", chunks=shards': 4 * 2 + 1,
        'engine="gpuzarr", chunks={}': 4 * 2 + 1,
    }
    assert "mask -32767, * 0.01, + 273.15" in out
    assert f"picture {tmp_path}/weather.png" in out
    assert (tmp_path / "weather.png").read_bytes().startswith(b"\x89PNG")
    assert xr.open_dataset(tmp_path / "weather.zarr", engine="gpuzarr").sizes["time"] == 48


def test_demo_rewrites_a_file(tmp_path, capsys):
    source = tmp_path / "any.nc"
    field = xr.Variable(("level", "y"), np.arange(12.0).reshape(3, 4), {"units": "m s-1"})
    field.encoding = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": np.int16(-1), "zlib": True}
    times = xr.Variable("level", np.arange("2024-01-01", "2024-01-04", dtype="datetime64[D]").astype("M8[ns]"))
    text = xr.Variable("y", ["a", "bc", "", "d"])
    xr.Dataset({"w": field, "when": times, "text": text}, coords={"level": [1, 2, 3]}).to_netcdf(source)

    assert main(["demo", "--dir", str(tmp_path), "--source", str(source)]) == 0

    out = capsys.readouterr().out
    assert out.startswith(f"writing {source} to ")
    assert "equal   values" in out
    copy = xr.open_dataset(tmp_path / "any-sharded.zarr", engine="gpuzarr")
    xr.testing.assert_identical(copy.load(), xr.open_dataset(source).load())
    assert copy.w.encoding["shards"] == (3, 4)
    assert copy.w.encoding["dtype"] == np.int16


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize(("name", "write"), [("t.zarr", xr.DataTree.to_zarr), ("t.nc", xr.DataTree.to_netcdf)])
def test_demo_says_which_groups_it_leaves_out(tmp_path, capsys, name, write):
    below = xr.Dataset({"u": ("x", [2.0, 3.0])})
    tree = xr.DataTree.from_dict({"/": xr.Dataset({"t": ("y", [1.0])}), "/between/a": below, "/c": below})
    write(tree, tmp_path / name)

    assert main(["demo", "--dir", str(tmp_path), "--source", str(tmp_path / name)]) == 0

    told = capsys.readouterr().out.splitlines()
    line = told.index("left    between/a, c: groups below the root were not read")
    assert f'xr.open_dataset("{tmp_path / name}", group="between/a")' in told[line + 1]
    assert list(xr.open_dataset(tmp_path / "t-sharded.zarr", engine="gpuzarr")) == ["t"]


def test_demo_of_variables_with_shards_of_several_lengths_warns_of_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sample, "CHUNK_ELEMENTS", 64)
    a, b = (xr.DataArray(np.zeros((600, n)), dims=("time", f"x{n}")) for n in (9, 7))  # shards of 168 and 216 times
    xr.Dataset({"a": a, "b": b}).to_netcdf(tmp_path / "two.nc")

    assert main(["demo", "--dir", str(tmp_path), "--source", str(tmp_path / "two.nc")]) == 0

    assert capsys.readouterr().err == ""


def test_demo_can_rewrite_its_own_store(tmp_path, capsys):
    arguments = ["demo", "--dir", str(tmp_path), "--device", "host"]
    assert main([*arguments, "--size", "small"]) == 0

    assert main([*arguments, "--source", f"{tmp_path}/weather.zarr"]) == 0

    assert (tmp_path / "weather.zarr").is_dir()
    assert (tmp_path / "weather-sharded.zarr").is_dir()


def test_demo_goes_on_without_matplotlib(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    assert main(["demo", "--size", "small", "--dir", str(tmp_path)]) == 0

    assert "picture none: matplotlib is not installed (pip install 'xarray-gpuzarr[demo]')" in capsys.readouterr().out


def test_demo_reports_a_difference_with_status_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "difference_of", lambda *_readers: "t2m: float32, not float64")

    assert main(["demo", "--size", "small", "--dir", str(tmp_path)]) == 1

    assert 'DIFFERS from engine="zarr":\nt2m: float32, not float64' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (xr.Dataset({"a": ("x", [1.0, 2.0])}), ""),
        (xr.Dataset({"a": ("x", [1.0, 3.0])}), "Differing data variables"),
        (xr.Dataset({"a": ("x", [1.0, 2.0], {"units": "K"})}), "Differing"),
        (xr.Dataset({"a": ("x", np.float32([1, 2]))}), "a: float32, not float64"),
    ],
)
def test_difference_finds_values_attributes_and_dtypes(changed, said):
    stock = demo.DemoReader(label="stock", open=lambda: xr.Dataset({"a": ("x", [1.0, 2.0])}))
    ours = demo.DemoReader(label="ours", open=lambda: changed)

    difference = demo.difference_of(stock, ours)

    assert said in difference
    assert bool(difference) == bool(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--version"], "gpuzarr 0."), (["--help"], "gpuzarr demo --source"), (["info", "--help"], "--group")],
)
def test_python_m_is_the_same_command(arguments, said):
    done = subprocess.run(
        [sys.executable, "-m", "xarray_gpuzarr", *arguments], capture_output=True, text=True, check=True
    )

    assert said in done.stdout


INFO = ["info", "{path}"]
UNREAD = [([*INFO, "--all"], ""), ([*INFO, "--json"], "1"), (["--help"], "")]
"""Commands, and whether each write goes to the pipe at once."""


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    usually(UNREAD, full=[*product([INFO, ["--version"], *(words for words, _ in UNREAD)], ["", "1"])]),
)
def test_a_pipe_that_nobody_reads_is_no_failure(path, arguments, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "xarray_gpuzarr", *(argument.format(path=path) for argument in arguments)]

    done = subprocess.run(
        command,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("in", "info"),
        ("info s", "s.zarr"),
        ("info s.zarr/t", "s.zarr/t"),
        ("info s.zarr --device c", "cuda"),
        ("info s.zarr --al", "--all"),
        ("bench s.z", "s.zarr"),
        ("demo --dir s", "s.zarr"),
        ("demo --source s", "s.zarr"),
        ("doctor --device h", "host"),
        ("doctor --json s", "s.zarr"),
    ],
)
def test_bash_completes_commands_paths_and_choices(path, words, completed):
    folder = Path(path).parent
    script = folder / "gpuzarr.bash"
    script.write_text(shtab.complete(cli.parser(), "bash"))

    words = ["gpuzarr", *words.split()]
    code = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_gpuzarr; echo ${{COMPREPLY[@]}}"
    command = ["bash", "-c", f"source {script}; {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)

    assert done.stdout == f"{completed}\n"


@pytest.mark.parametrize(
    ("shape", "chunk", "shard"),
    [
        ((96, 121, 240), (1, 121, 240), (24, 121, 240)),
        ((2, 3, 241, 480), (1, 1, 241, 480), (2, 3, 241, 480)),
        ((50, 37, 721, 1440), (1, 1, 721, 1440), (1, 24, 721, 1440)),
        ((2, 5000, 5000), (1, 209, 5000), (1, 5016, 5000)),
        ((10,), (10,), (10,)),
        ((3_000_000,), (1_048_576,), (3_145_728,)),
        ((4, 0, 3), (1, 1, 3), (4, 1, 3)),
    ],
)
def test_shard_layout(shape, chunk, shard):
    assert shard_layout(shape) == (chunk, shard)


def test_rewritten_shapes_can_be_read(tmp_path):
    dataset = xr.Dataset(
        {
            "empty": (("a", "none"), np.empty((4, 0))),
            "scalar": ((), 3.5),
            "uneven": (("u", "a"), np.arange(28.0).reshape(7, 4)),
        },
        coords={"nowhere": ("none", np.empty(0)), "two": (("u", "a"), np.ones((7, 4)))},
    )

    write_sharded(dataset, str(tmp_path / "s.zarr"))

    xr.testing.assert_identical(xr.open_dataset(tmp_path / "s.zarr", engine="gpuzarr").load(), dataset)
