"""What the report's inspector shows: some students, some images, every class, every teacher (`inspection.json`).

Shapes: N clients that can teach, B images, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from crad.inspection.cases import FAILURE_RULE, SUCCESS_RULE, find_cases
from crad.inspection.panel import Panel
from crad.runs.records import Record

SURVEY_IMAGES, SURVEY_STUDENTS = 30, 10
SURVEY_NUMBERS = 300_000  # weights in a survey: about 2 MB of the page
DIGITS = 5  # of a probability or a weight
STATES = {"kept": "k", "unsupported": "u", "outlier": "o"}


def make_survey(panel: Panel) -> Record:
    """Make what the report's inspector shows: some students, some images, every class, every teacher."""
    searched = panel.searched
    q_NBC = panel.outputs(searched)
    cases = find_cases(panel, q_NBC, students=panel.students)
    students = _spread([case.student for case in cases[:2]], panel.students, limit=_most_students(panel))
    cases = [case for case in cases if case.student in students]
    room = SURVEY_NUMBERS // (len(students) * len(panel.teachers) * panel.context.data.num_classes)
    images = _spread([case.image for case in cases], _by_class(panel, searched), limit=min(SURVEY_IMAGES, max(2, room)))
    shown = torch.tensor(images, device=q_NBC.device)
    return {
        "schema": 1,
        "round": panel.round_index,
        "method": panel.experiment.method,
        "temperature": panel.experiment.temperature,
        "min_support": panel.experiment.min_support,
        "searched_images": len(searched),
        "rules": {"success": SUCCESS_RULE, "failure": FAILURE_RULE},
        "classes": list(panel.context.data.dataset.class_names),
        **_words_record(panel),
        "teachers": [_teacher_record(panel, k) for k in range(len(panel.teachers))],
        "images": [_image_record(panel, image) for image in images],
        "probabilities": _rounded(q_NBC[:, shown].transpose(0, 1)),
        **_corrected_record(panel, q_NBC[:, shown]),
        "students": [_student_record(panel, student, q_NBC[:, shown]) for student in students],
        "cases": [
            {
                "kind": case.kind,
                "student": case.student,
                "image": case.image,
                "class": int(panel.context.data.global_test.labels[case.image]),
                "margin": round(case.margin, DIGITS),
            }
            for case in cases
            if case.image in images
        ],
    }


def _words_record(panel: Panel) -> Record:
    """Return what samples are called where they are no images."""
    kind = panel.context.data.dataset.kind_of_data
    return {} if kind.name == "image" else {"words": {"one": kind.words.one, "several": kind.words.several}}


def _most_students(panel: Panel) -> int:
    room = SURVEY_NUMBERS // (2 * len(panel.teachers) * panel.context.data.num_classes)
    return max(1, min(SURVEY_STUDENTS, room))


def _by_class(panel: Panel, searched: Sequence[int]) -> list[int]:
    """Return the searched images in an order that takes one of every class in turn."""
    labels = panel.context.data.global_test.labels.tolist()
    seen: dict[int, int] = {}
    turns = []
    for image in searched:
        seen[labels[image]] = seen.get(labels[image], 0) + 1
        turns.append((seen[labels[image]], labels[image], image))
    return [image for _, _, image in sorted(turns)]


def _teacher_record(panel: Panel, k: int) -> Record:
    slot, statistics = panel.teachers[k], panel.statistics[k]
    return {
        "client": slot.index,
        "architecture": slot.member.architecture.id,
        "is_liar": panel.is_attacker(slot.index),
        "counts": [round(count, 2) for count in statistics.counts],
        "accuracies": [round(accuracy, DIGITS) for accuracy in statistics.accuracies],
    }


def _image_record(panel: Panel, image: int) -> Record:
    dataset = panel.context.data.dataset
    return {
        "index": image,
        "label": int(panel.context.data.global_test.labels[image]),
        **dataset.kind_of_data.picture(dataset, dataset.test_samples[image]),
    }


def _corrected_record(panel: Panel, q_NBC: Tensor) -> Record:
    """Return what is heard in place of the probabilities, where the teachers' own class shares are removed."""
    corrected_NBC = panel.corrected(q_NBC)
    return {} if corrected_NBC is None else {"corrected": _rounded(corrected_NBC.transpose(0, 1))}


def _student_record(panel: Panel, student: int, q_NBC: Tensor) -> Record:
    """Return per image and class what was made of the teachers, who stand in their order without the student."""
    chosen, trace = panel.of_student(student), panel.combine(student, q_NBC)
    return {
        "client": student,
        "teachers": [panel.teachers[k].index for k in chosen],
        **_verified_record(panel, student),
        "consensus": _rounded(trace.consensus),
        "band": _rounded(trace.band),
        "target": _rounded(trace.target),
        "uniform": _rounded(q_NBC[chosen].mean(dim=0)),
        "weights": _rounded(trace.weight.transpose(0, 1)),
        "states": [
            ["".join(STATES[str(state)] for state in row) for row in of_image]
            for of_image in trace.state.swapaxes(0, 1)
        ],
    }


def _verified_record(panel: Panel, student: int) -> Record:
    """Return what the student knows of its teachers where that is not what they published."""
    stats = panel.stats(student)
    if stats.false_alarms_KC is None:
        return {}
    return {
        "support": _rounded(stats.speaking_KC),
        "accuracies": _rounded(stats.accuracies_KC),
        "false_alarms": _rounded(stats.false_alarms_KC),
    }


def _spread(first: Sequence[int], others: Sequence[int], *, limit: int) -> list[int]:
    """Return the first ones and then others, each once, up to a limit, in ascending order."""
    return sorted(list(dict.fromkeys([*first, *others]))[: max(limit, len(set(first[:2])))])


def _rounded(values: Tensor) -> list[object]:
    nested: list[object] = np.round(values.cpu().double().numpy(), DIGITS).tolist()
    return nested
