"""How a run's teachers are combined for single test images: the paper's appendix for any run.

Reads the selected round's checkpoint, lets every other client speak as a teacher, and traces the rule. The report's
inspector shows a survey of it (`inspection.json`), `crad explain` any image and class; both from the same traces.

Shapes: N clients that can teach, C classes.
"""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from crad.aggregation import Trace
from crad.analysis.traces import ImageTrace, TeacherView
from crad.data.kinds import Words
from crad.errors import ConfigError, RunError, unknown_name
from crad.federation.context import RunContext
from crad.inspection.cases import find_cases
from crad.inspection.panel import Panel
from crad.inspection.survey import make_survey
from crad.runs.directory import INSPECTION_FILE, RunDirectory
from crad.runs.records import Record


class RunInspector:
    """A run at its selected round, ready to be asked about test images."""

    def __init__(self, run: Path, *, context: RunContext | None = None) -> None:
        """Open a run; `context`: the run's, where the caller has it at hand."""
        self.panel = Panel(run, context=context)

    def trace(self, *, student: int, image: int, class_index: int | None) -> ImageTrace:
        """Trace one image and class; the class defaults to the true one."""
        test = self.panel.context.data.global_test
        self._check_student(student)
        _check_index(self._words.one, image, len(test))
        asked = int(test.labels[image]) if class_index is None else class_index
        _check_index("class", asked, self.panel.context.data.num_classes)
        q_NBC = self.panel.outputs([image])
        return self._view(student, image, 0, asked, q_NBC, self.panel.combine(student, q_NBC))

    def class_of(self, text: str) -> int:
        """Return the class that is meant by its index or its name."""
        names = list(self.panel.context.data.dataset.class_names)
        if text.isdecimal():
            return int(text)
        if text not in names:
            raise unknown_name("class", text, names)
        return names.index(text)

    def clearest(self, *, student: int | None = None) -> tuple[ImageTrace, ImageTrace]:
        """Return the success and the failure that say most, of one student or of all, by the rules stated above."""
        if student is not None:
            self._check_student(student)
        searched = self.panel.searched
        cases = find_cases(
            self.panel, self.panel.outputs(searched), students=self.panel.students if student is None else [student]
        )
        first = {case.kind: case for case in reversed(cases)}
        for kind in ("success", "failure"):
            if kind not in first:
                raise RunError(
                    f"no clear {kind} among the first {len(searched)} test {self._words.several}: the targets of "
                    f"method {self.panel.experiment.method!r} say what a uniform average says; choose one with --image"
                )
        return (
            self.trace(student=first["success"].student, image=first["success"].image, class_index=None),
            self.trace(student=first["failure"].student, image=first["failure"].image, class_index=None),
        )

    def survey(self) -> Record:
        """Return what the report's inspector shows: some students, some images, every class, every teacher."""
        return make_survey(self.panel)

    @property
    def _words(self) -> Words:
        return self.panel.context.data.dataset.kind_of_data.words

    def _check_student(self, student: int) -> None:
        _check_index("student", student, len(self.panel.roster))
        if student not in self.panel.students:
            raise ConfigError(
                f"client {student} has had no teacher: by round {self.panel.round_index} no other client had learned; "
                f"choose one of {', '.join(map(str, self.panel.students))}"
            )

    def _view(self, student: int, image: int, row: int, label: int, q_NBC: Tensor, trace: Trace) -> ImageTrace:
        names = self.panel.context.data.dataset.class_names
        stats = self.panel.stats(student)
        alarms_KC = stats.false_alarms_KC
        is_corrected = self.panel.experiment.recipe.teacher_prior != "keep"
        teachers = [
            TeacherView(
                client=self.panel.teachers[n].index,
                architecture=self.panel.teachers[n].member.architecture.id,
                count=float(stats.speaking_KC[k, label]),
                accuracy=float(stats.accuracies_KC[k, label]),
                probability=float(q_NBC[n, row, label]),
                state=str(trace.state[k, row, label]),
                weight=float(trace.weight[k, row, label]),
                false_alarms=None if alarms_KC is None else float(alarms_KC[k, label]),
                corrected=float(trace.corrected[k, row, label]) if is_corrected else None,
                is_liar=self.panel.is_attacker(self.panel.teachers[n].index),
            )
            for k, n in enumerate(self.panel.of_student(student))
        ]
        return ImageTrace(
            round_index=self.panel.round_index,
            student=student,
            image=image,
            class_index=label,
            class_name=names[label],
            true_class=names[int(self.panel.context.data.global_test.labels[image])],
            consensus=float(trace.consensus[row, label]),
            band=float(trace.band[row, label]),
            target=float(trace.target[row, label]),
            uniform=float(q_NBC[self.panel.of_student(student), row, label].mean()),
            teachers=tuple(teachers),
            word=self._words.one,
        )


def write_inspection(directory: RunDirectory, inspector: RunInspector) -> Record:
    """Put a run's survey beside its other records, as `inspection.json`."""
    survey = inspector.survey()
    directory.write_text(INSPECTION_FILE, json.dumps(survey, separators=(",", ":"), allow_nan=False))
    return survey


def _check_index(what: str, index: int, size: int) -> None:
    if not 0 <= index < size:
        raise ConfigError(f"{what} {index} does not exist; choose 0 to {size - 1}")
