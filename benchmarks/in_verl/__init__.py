"""verl's own trainer on a CPU, with real workers: a platform and an inference server for it, and
runs of exported plans inside. Needs an environment with verl: `make test-verl` builds one.

Modules: `platform`, the plug-in that verl loads; `server`, transformers' continuous batching behind
verl's interfaces; `reward`, of the built-in task; `run`, one run of an export; `circle`, measure,
import, calibrate, forecast and confirm.
"""
