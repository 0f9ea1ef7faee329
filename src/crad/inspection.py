"""How a run's teachers are combined for single test images: the paper's appendix for any run.

Reads the selected round's checkpoint, lets every other client speak as a teacher, and traces the rule. The report's
inspector shows a survey of it (`inspection.json`), `crad explain` any image and class; both from the same traces.

Shapes: N clients that can teach, K teachers of one student, B images, C classes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crad.aggregation import Tally, Trace, explain
from crad.data.picture import contact_sheet
from crad.data.tensors import ImageSet
from crad.errors import ConfigError, RunError, unknown_name
from crad.federation.checkpoint import latest_round, load_checkpoint, saved_rounds
from crad.federation.method import Method
from crad.federation.peer import Peer, class_statistics, training_indices
from crad.federation.records import Record, partition_record
from crad.federation.roster import Place, Roster
from crad.federation.work import load_tensors
from crad.federation.world import World, build_world
from crad.learning.device import repeatable
from crad.learning.teachers import PreparedTeacher, TeacherEngine, soft_predictions
from crad.methods import resolve_method
from crad.methods.distillation import Known, known_of
from crad.results.run_directory import RunDirectory
from crad.results.selection import best_round
from crad.results.traces import ImageTrace, TeacherView

SEARCHED_IMAGES = 500  # test images looked through for the clearest cases
TALLIED_IMAGES = 2000  # of a student's training samples on which its teachers are counted
SEARCHED_OUTPUTS = 10_000  # of one image by one teacher: many clients look through fewer images
SURVEY_IMAGES, SURVEY_STUDENTS = 30, 10
SURVEY_NUMBERS = 300_000  # weights in a survey: about 2 MB of the page
CASES_EACH = 4  # successes and failures in a survey
MIN_MARGIN = 1e-4  # below, nothing is clear: a uniform rule against the uniform average, say
DIGITS = 5  # of a probability or a weight in a survey
STATES = {"kept": "k", "unsupported": "u", "outlier": "o"}

SUCCESS_RULE = (
    "Success: over all students and searched test images, the target for the true class exceeds what a uniform average "
    "of the same teachers would have said by most."
)
FAILURE_RULE = (
    "Failure: the teacher with the most validation samples of the true class was dropped as an outlier, and what it "
    "said exceeds the target by most; where that never happened, the target falls short of the uniform average by most."
)


@dataclass(frozen=True)
class Case:
    """A student and a test image where the rule did clearly well or badly for the true class, and by how much."""

    kind: str  # success or failure
    student: int
    image: int
    margin: float


class RunInspector:
    """A run's models at the selected round, ready to be asked about test images."""

    def __init__(self, run: Path, *, world: World | None = None) -> None:
        """`world`: the run's data, where the caller has it at hand."""
        directory = RunDirectory(run)
        self.experiment = directory.experiment()
        method = resolve_method(self.experiment.method, self.experiment.method_settings)
        if not is_inspectable(method, self.experiment.clients) or method.rule is None:
            raise RunError(
                f"{run} ran method {self.experiment.method!r} with {self.experiment.clients} clients: no teachers were "
                "combined by a rule there, so there is nothing to explain"
            )
        recipe = self.experiment.recipe
        self._rule, self._source = method.rule.with_filter(recipe.filter), recipe.evidence
        self._tallies: dict[int, Tally] = {}
        self.round_index = _selected_round(directory)
        self.world = world or build_world(self.experiment)
        directory.check_same_data(partition_record(self.world))
        self.roster = Roster(self.world, method.roster(self.world), directory.checkpoint_folder)
        load_checkpoint(self.roster, round_index=self.round_index)
        self._engine = TeacherEngine(device=self.world.device, precision=self.experiment.teacher_precision)
        # With partial participation some have never learned; nobody has been taught by them either.
        self.teachers = [place for place in self.roster if place.state is not None] or list(self.roster)
        self._statistics = [
            class_statistics(self.world, place.index, place.measured, with_cross_entropy=self._rule.needs_cross_entropy)
            for place in self.teachers
        ]

    def trace(self, *, student: int, image: int, class_index: int | None) -> ImageTrace:
        """One image and class; the class defaults to the true one."""
        test = self.world.global_test
        _check_index("student", student, len(self.roster))
        _check_index("image", image, len(test))
        asked = int(test.labels[image]) if class_index is None else class_index
        _check_index("class", asked, self.world.num_classes)
        q_NBC = self._outputs([image])
        return self._view(student, image, 0, asked, q_NBC, self._combine(student, q_NBC))

    def class_of(self, text: str) -> int:
        """The class that is meant by its index or its name."""
        names = list(self.world.dataset.class_names)
        if text.isdecimal():
            return int(text)
        if text not in names:
            raise unknown_name("class", text, names)
        return names.index(text)

    def clearest(self, *, student: int | None = None) -> tuple[ImageTrace, ImageTrace]:
        """The success and the failure that say most, of one student or of all, by the rules stated above."""
        if student is not None:
            _check_index("student", student, len(self.roster))
        searched = self._searched()
        cases = self._cases(self._outputs(searched), students=self._students() if student is None else [student])
        first = {case.kind: case for case in reversed(cases)}
        for kind in ("success", "failure"):
            if kind not in first:
                raise RunError(
                    f"no clear {kind} among the first {len(searched)} test images: the targets of method "
                    f"{self.experiment.method!r} say what a uniform average says; choose one with --image"
                )
        return (
            self.trace(student=first["success"].student, image=first["success"].image, class_index=None),
            self.trace(student=first["failure"].student, image=first["failure"].image, class_index=None),
        )

    def survey(self) -> Record:
        """What the report's inspector shows: some students, some images, every class, every teacher."""
        searched = self._searched()
        q_NBC = self._outputs(searched)
        cases = self._cases(q_NBC, students=self._students())
        students = _spread([case.student for case in cases[:2]], self._students(), limit=self._survey_students())
        cases = [case for case in cases if case.student in students]
        room = SURVEY_NUMBERS // (len(students) * len(self.teachers) * self.world.num_classes)
        images = _spread(
            [case.image for case in cases], self._by_class(searched), limit=min(SURVEY_IMAGES, max(2, room))
        )
        shown = torch.tensor(images, device=q_NBC.device)
        return {
            "schema": 1,
            "round": self.round_index,
            "method": self.experiment.method,
            "temperature": self.experiment.temperature,
            "min_support": self.experiment.min_support,
            "searched_images": len(searched),
            "rules": {"success": SUCCESS_RULE, "failure": FAILURE_RULE},
            "classes": list(self.world.dataset.class_names),
            "teachers": [self._teacher_record(k) for k in range(len(self.teachers))],
            "images": [self._image_record(image) for image in images],
            "probabilities": _rounded(q_NBC[:, shown].transpose(0, 1)),
            "students": [self._student_record(student, q_NBC[:, shown]) for student in students],
            "cases": [
                {
                    "kind": case.kind,
                    "student": case.student,
                    "image": case.image,
                    "class": int(self.world.global_test.labels[case.image]),
                    "margin": round(case.margin, DIGITS),
                }
                for case in cases
                if case.image in images
            ],
        }

    def _outputs(self, images: Sequence[int]) -> Tensor:
        """What every client says about these test images, q_NBC."""
        where = torch.tensor(images, device=self.world.global_test.images.device)
        with repeatable(0, self.world.device):
            return soft_predictions(
                [partial(self._run_of, place) for place in self.teachers],
                self.world.preparation.inputs(self.world.global_test.images[where]),
                temperature=self.experiment.temperature,
            )

    def _run_of(self, place: Place) -> PreparedTeacher:
        """One teacher at a time comes from its resting state."""
        peer = Peer(self.world, place.member)
        if place.state is not None:
            peer.load_state(load_tensors(place.state), place.measured)
        return self._engine.prepare(peer.model.eval().requires_grad_(False), key=place.member.architecture.id)

    def _of_student(self, student: int) -> list[int]:
        """The places among the teachers that teach this student: all but itself."""
        return [k for k, place in enumerate(self.teachers) if place.index != student]

    def _combine(self, student: int, q_NBC: Tensor) -> Trace:
        return explain(
            q_NBC[self._of_student(student)],
            **self._known(student),
            rule=self._rule,
            min_support=self.experiment.min_support,
            epsilon=self.experiment.epsilon,
            unsupported=self.experiment.unsupported,
        )

    def _known(self, student: int) -> Known:
        """What the student knows of its teachers: what they published, and what it counts on its own samples."""
        statistics = [self._statistics[k] for k in self._of_student(student)]
        return known_of(statistics, self._tally_of(student), source=self._source)

    def _support(self, student: int) -> Tensor:
        """Samples that speak for each of the student's teachers, [K,C]."""
        known = self._known(student)
        return known["counts"] if known["support"] is None else known["support"]

    def _tally_of(self, student: int) -> Tally | None:
        if self._source == "reported":
            return None
        if not self._tallies:
            self._count()
        return self._tallies[student]

    def _count(self) -> None:
        """Every teacher once over everybody's training samples, as they are: what each student would count of it."""
        parts = [self._training_part(place) for place in self.roster]
        self._tallies = {
            place.index: Tally(len(self._of_student(place.index)), self.world.num_classes) for place in self.roster
        }
        with repeatable(0, self.world.device):
            for n, teacher in enumerate(self.teachers):
                run = self._run_of(teacher)
                for place, part in zip(self.roster, parts, strict=True):
                    chosen = self._of_student(place.index)
                    if n not in chosen or not len(part):
                        continue
                    said_1BC = run(self.world.preparation.inputs(part.images)).unsqueeze(0)
                    mask_K = torch.arange(len(chosen)) == chosen.index(n)
                    self._tallies[place.index].add(said_1BC, part.labels, mask_K, is_new=n == chosen[0])

    def _training_part(self, place: Place) -> ImageSet:
        return self.world.images(training_indices(self.world, place.member.clients)[:TALLIED_IMAGES])

    def _students(self) -> list[int]:
        return [place.index for place in self.roster]

    def _survey_students(self) -> int:
        room = SURVEY_NUMBERS // (2 * len(self.teachers) * self.world.num_classes)
        return max(1, min(SURVEY_STUDENTS, room))

    def _searched(self) -> list[int]:
        limit = max(50, SEARCHED_OUTPUTS // len(self.teachers))
        return list(range(min(SEARCHED_IMAGES, limit, len(self.world.global_test))))

    def _by_class(self, searched: Sequence[int]) -> list[int]:
        """The searched images in an order that takes one of every class in turn."""
        labels = self.world.global_test.labels.tolist()
        seen: dict[int, int] = {}
        turns = []
        for image in searched:
            seen[labels[image]] = seen.get(labels[image], 0) + 1
            turns.append((seen[labels[image]], labels[image], image))
        return [image for _, _, image in sorted(turns)]

    def _cases(self, q_NBC: Tensor, *, students: Sequence[int]) -> list[Case]:
        """The clearest successes and failures in turn, at most one of each kind per image."""
        labels_B = self.world.global_test.labels[: q_NBC.shape[1]]
        best: dict[str, list[Case]] = {"success": [], "failure": []}
        gains, losses, shortfalls = [], [], []
        for student in students:
            gain_B, loss_B, shortfall_B = self._margins(student, q_NBC, labels_B)
            gains.append(gain_B)
            losses.append(loss_B)
            shortfalls.append(shortfall_B)
        lost_SB = torch.stack(losses)
        if not torch.isfinite(lost_SB).any():
            lost_SB = torch.stack(shortfalls)
        for kind, margin_SB in (("success", torch.stack(gains)), ("failure", lost_SB)):
            margin_B, student_B = margin_SB.max(dim=0)
            for image in margin_B.argsort(descending=True, stable=True).tolist()[:CASES_EACH]:
                if MIN_MARGIN < margin_B[image] < torch.inf:
                    best[kind].append(Case(kind, students[int(student_B[image])], image, float(margin_B[image])))
        most = max(map(len, best.values()))
        return [best[kind][rank] for rank in range(most) for kind in best if rank < len(best[kind])]

    def _margins(self, student: int, q_NBC: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of every image's true class: target over uniform mean, dropped specialist over target, uniform over target.

        The second is minus infinity where the best-supported teacher was not dropped as an outlier.
        """
        chosen, trace = self._of_student(student), self._combine(student, q_NBC)
        rows_B = torch.arange(len(labels_B), device=labels_B.device)
        target_B = trace.target[rows_B, labels_B]
        uniform_B = q_NBC[chosen].mean(dim=0)[rows_B, labels_B]
        counts_KC = self._support(student).to(labels_B.device)
        specialist_B = counts_KC.argmax(dim=0)[labels_B]
        states_B = trace.state[specialist_B.cpu().numpy(), np.arange(len(labels_B)), labels_B.cpu().numpy()]
        is_lost_B = torch.from_numpy(states_B == "outlier").to(labels_B.device)
        said_B = q_NBC[chosen][specialist_B, rows_B, labels_B]
        lost_B = torch.where(is_lost_B, said_B - target_B, -torch.inf)
        return target_B - uniform_B, lost_B, uniform_B - target_B

    def _teacher_record(self, k: int) -> Record:
        place, statistics = self.teachers[k], self._statistics[k]
        return {
            "client": place.index,
            "architecture": place.member.architecture.id,
            "counts": [round(count, 2) for count in statistics.counts],
            "accuracies": [round(accuracy, DIGITS) for accuracy in statistics.accuracies],
        }

    def _image_record(self, image: int) -> Record:
        pixels = self.world.dataset.test_images[image : image + 1]
        picture = contact_sheet(pixels, columns=1, gap=0)
        return {
            "index": image,
            "label": int(self.world.global_test.labels[image]),
            "png": base64.b64encode(picture).decode(),
        }

    def _student_record(self, student: int, q_NBC: Tensor) -> Record:
        """Per image and class what was made of the teachers, who stand in their order without the student."""
        chosen, trace = self._of_student(student), self._combine(student, q_NBC)
        return {
            "client": student,
            "teachers": [self.teachers[k].index for k in chosen],
            **self._verified_record(student),
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

    def _verified_record(self, student: int) -> Record:
        """What the student knows of its teachers where that is not what they published."""
        known = self._known(student)
        if known["false_alarms"] is None:
            return {}
        return {
            "support": _rounded(self._support(student)),
            "accuracies": _rounded(known["accuracies"]),
            "false_alarms": _rounded(known["false_alarms"]),
        }

    def _view(self, student: int, image: int, row: int, label: int, q_NBC: Tensor, trace: Trace) -> ImageTrace:
        names = self.world.dataset.class_names
        known, support_KC = self._known(student), self._support(student)
        alarms_KC = known["false_alarms"]
        teachers = [
            TeacherView(
                client=self.teachers[n].index,
                architecture=self.teachers[n].member.architecture.id,
                count=float(support_KC[k, label]),
                accuracy=float(known["accuracies"][k, label]),
                probability=float(q_NBC[n, row, label]),
                state=str(trace.state[k, row, label]),
                weight=float(trace.weight[k, row, label]),
                false_alarms=None if alarms_KC is None else float(alarms_KC[k, label]),
            )
            for k, n in enumerate(self._of_student(student))
        ]
        return ImageTrace(
            round_index=self.round_index,
            student=student,
            image=image,
            class_index=label,
            class_name=names[label],
            true_class=names[int(self.world.global_test.labels[image])],
            consensus=float(trace.consensus[row, label]),
            band=float(trace.band[row, label]),
            target=float(trace.target[row, label]),
            uniform=float(q_NBC[self._of_student(student), row, label].mean()),
            teachers=tuple(teachers),
        )


def write_inspection(directory: RunDirectory, inspector: RunInspector) -> Record:
    """Put a run's survey beside its other records, as `inspection.json`."""
    survey = inspector.survey()
    directory.write_text("inspection.json", json.dumps(survey, separators=(",", ":"), allow_nan=False))
    return survey


def is_inspectable(method: Method, clients: int) -> bool:
    """Whether a run of the method combines teachers by a rule."""
    return method.rule is not None and clients > 1


def _spread(first: Sequence[int], others: Sequence[int], *, limit: int) -> list[int]:
    """The first ones and then others, each once, up to a limit, in ascending order."""
    return sorted(list(dict.fromkeys([*first, *others]))[: max(limit, len(set(first[:2])))])


def _rounded(values: Tensor) -> list[object]:
    nested: list[object] = np.round(values.double().cpu().numpy(), DIGITS).tolist()
    return nested


def _selected_round(directory: RunDirectory) -> int:
    best = best_round(directory.full_rounds())
    saved = saved_rounds(directory.checkpoint_folder)
    if best is not None and best["round"] in saved:
        return int(best["round"])
    latest = latest_round(directory.checkpoint_folder)
    if latest is None:
        raise RunError(f"{directory.path} has no complete round yet: continue it with crad run --resume")
    return latest


def _check_index(what: str, index: int, size: int) -> None:
    if not 0 <= index < size:
        raise ConfigError(f"{what} {index} does not exist; choose 0 to {size - 1}")
