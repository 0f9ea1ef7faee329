"""One organisation's part in a federation: the loop of the simulation over own data, and what is kept of it.

<state>/<federation>/, a run directory of the own member alone:

| file                                   | what it holds                                   | written by              |
|----------------------------------------|-------------------------------------------------|-------------------------|
| `experiment.toml`, `partition.json`,   | as in every run directory                       | `training.py`           |
| `weights.json`                         |                                                 |                         |
| `rounds.jsonl`, `checkpoint/`          | as in every run directory                       | `runs/loop.py`          |
| `secret`                               | seed of what others must not draw again         | `local_peer.py`         |
| `alone/`                               | the same for a model that never heard of the    | `training.py`           |
|                                        | others: did joining help?                       |                         |
| `participant.json`, `report.html`,     | the outcome                                     | `join.py`               |
| `model.safetensors`, `model.onnx`      |                                                 |                         |
| `committee.safetensors`                | all members as one predictor                    | `committee.py`          |
| `status.json`                          | for `crad peer status`                          | `status.py`             |
| `refused.jsonl`                        | what was refused on its way in, and why         | `refusals.py`           |
| `ledger.jsonl`                         | everything that left this machine               | `network/ledger.py`     |
| `exchange/`                            | what was sent and received lately               | `network/`              |
| `committee/`                           | everybody's newest snapshot, where it may stay  | `network/store/`        |
| `last-published/`                      | what stands in for us beyond the budget         | `accounted_exchange.py` |

<state>/, of all federations: `privacy.jsonl` (`privacy_account.py`) and `division-secret` (`local_peer.py`).
"""
