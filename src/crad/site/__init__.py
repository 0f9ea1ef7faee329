"""One organisation's part in a federation: the loop of the simulation over own images, and what is kept of it.

<state>/<federation>/
  experiment.toml, partition.json, rounds.jsonl, checkpoint/   as in a run directory, of the own member alone
  alone/            the same for a model that never heard of the others: did joining help?
  status.json       for `crad peer status`
  exchange/         what was sent and received lately
  ledger.jsonl      everything that left this machine
  refused.jsonl     what was refused on its way in, and why
"""
