"""Which file of a folder is its launch."""

from __future__ import annotations

from pathlib import Path

from rollcast.simulator.errors import ScenarioError

_HYDRA = Path(".hydra", "config.yaml")
_FIRST = ("run.sh", "train.sh", "launch.sh", "config.yaml", "rl.toml", "config.yml", "train.py")
_KINDS = (".sh", ".slurm", ".sbatch", ".yaml", ".yml", ".toml", ".py")
_MOST = 20_000


def launch_in(path: Path) -> Path:
    """The path itself, or the one launch of a folder: what Hydra left of a run, a file with a usual
    name, or its only script or configuration. Raises ScenarioError where there is none, or more."""
    if not path.is_dir():
        return path
    if (path / _HYDRA).is_file():
        return path / _HYDRA
    if path.name == ".hydra" and (path / "config.yaml").is_file():
        return path / "config.yaml"
    usual = [path / name for name in _FIRST if (path / name).is_file()]
    if usual:
        return _only(path, usual)
    found: list[Path] = []
    for number, file in enumerate(path.iterdir()):
        if number > _MOST:
            raise ScenarioError(str(path), f"holds more than {_MOST:,} files; name the launch")
        if file.suffix in _KINDS and file.is_file():
            found.append(file)
    for suffixes in ((".sh", ".slurm", ".sbatch"), (".toml",), (".yaml", ".yml"), (".py",)):
        some = sorted(file for file in found if file.suffix in suffixes)
        if some:
            return _only(path, some)
    raise ScenarioError(str(path), "holds no script and no configuration; name the launch")


def _only(path: Path, files: list[Path]) -> Path:
    if len(files) == 1:
        return files[0]
    names = ", ".join(file.name for file in files[:6]) + (" ..." if len(files) > 6 else "")
    raise ScenarioError(str(path), f"several files could be the launch: {names}; name one")
