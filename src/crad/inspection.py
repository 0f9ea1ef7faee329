"""How a run's teachers are combined for single test images: the paper's appendix for any run.

Reads the selected round's checkpoint, lets every other client speak as a teacher, and traces the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from crad.aggregation import Trace, explain
from crad.api import check_same_data, partition_record
from crad.data.tensors import ImageSet
from crad.errors import ConfigError, RunError
from crad.federation.checkpoint import latest_round, load_checkpoint, saved_rounds
from crad.federation.message import Statistics
from crad.federation.peer import Peer, class_statistics
from crad.federation.roster import Place, Roster
from crad.federation.work import load_tensors
from crad.federation.world import World, build_world
from crad.learning.device import repeatable
from crad.learning.teachers import PreparedTeacher, TeacherEngine, soft_predictions
from crad.methods import resolve_method
from crad.methods.distillation import statistics_tensors
from crad.results.run_directory import RunDirectory
from crad.results.selection import best_round

SEARCHED_IMAGES = 500  # test images looked through for the clearest cases


@dataclass(frozen=True)
class TeacherView:
    """One teacher's part in one target: what it holds, what it says, and what became of it."""

    client: int
    architecture: str
    count: float
    accuracy: float
    probability: float
    state: str
    weight: float


@dataclass(frozen=True)
class ImageTrace:
    """One test image and class, seen by one student. Probabilities are softened by the temperature."""

    round_index: int
    student: int
    image: int
    class_index: int
    class_name: str
    true_class: str
    consensus: float
    band: float
    target: float
    uniform: float
    teachers: tuple[TeacherView, ...]


class RunInspector:
    """A run's models at the selected round, ready to be asked about test images."""

    def __init__(self, run: Path) -> None:
        directory = RunDirectory(run)
        self.experiment = directory.experiment()
        method = resolve_method(self.experiment.method, self.experiment.method_settings)
        if method.rule is None or self.experiment.clients < 2:
            raise RunError(
                f"{run} ran method {self.experiment.method!r} with {self.experiment.clients} clients: no teachers were "
                "combined by a rule there, so there is nothing to explain"
            )
        self._rule = method.rule
        self.round_index = _selected_round(directory)
        self.world: World = build_world(self.experiment)
        check_same_data(directory, partition_record(self.world))
        self.roster = Roster(self.world, method.roster(self.world), directory.checkpoint_folder)
        load_checkpoint(self.roster, round_index=self.round_index)
        self._engine = TeacherEngine(device=self.world.device, precision=self.experiment.teacher_precision)

    def trace(self, *, student: int, image: int, class_index: int | None) -> ImageTrace:
        """One image and class; the class defaults to the true one."""
        test = self.world.global_test
        _check_index("student", student, len(self.roster))
        _check_index("image", image, len(test))
        true_class = int(test.labels[image])
        asked = true_class if class_index is None else class_index
        _check_index("class", asked, self.world.num_classes)
        q_KBC, trace = self._combine(student, slice(image, image + 1))
        return self._view(student, image, 0, asked, q_KBC, trace)

    def clearest(self, *, student: int) -> tuple[ImageTrace, ImageTrace]:
        """The success and the failure that say most, among the first test images.

        Success: the image where the rule's target for the true class exceeds the uniform mean's most.
        Failure: the image where it falls short of it most.
        """
        _check_index("student", student, len(self.roster))
        test = self.world.global_test
        searched = slice(0, min(SEARCHED_IMAGES, len(test)))
        q_KBC, trace = self._combine(student, searched)
        labels_B = test.labels[searched]
        gain_B = (trace.target - q_KBC.mean(dim=0)).gather(1, labels_B[:, None]).squeeze(1)
        best, worst = int(gain_B.argmax()), int(gain_B.argmin())
        return (
            self._view(student, best, best, int(labels_B[best]), q_KBC, trace),
            self._view(student, worst, worst, int(labels_B[worst]), q_KBC, trace),
        )

    def _combine(self, student: int, where: slice) -> tuple[Tensor, Trace]:
        teachers = self._teachers(student)
        test = self.world.global_test
        images = ImageSet(test.images[where], test.labels[where])
        counts_KC, accuracies_KC, cross_entropies_KC = statistics_tensors(
            [self._statistics(place, with_cross_entropy=self._rule.needs_cross_entropy) for place in teachers]
        )
        with repeatable(0, self.world.device):
            q_KBC = soft_predictions(
                [partial(self._run_of, place) for place in teachers],
                self.world.preparation.inputs(images.images),
                temperature=self.experiment.temperature,
            )
        trace = explain(
            q_KBC,
            counts_KC,
            accuracies_KC,
            self._rule,
            min_support=self.experiment.min_support,
            epsilon=self.experiment.epsilon,
            unsupported=self.experiment.unsupported,
            cross_entropy=cross_entropies_KC,
        )
        return q_KBC, trace

    def _teachers(self, student: int) -> list[Place]:
        others = [place for place in self.roster if place.index != student]
        # With partial participation some have never learned; nobody has been taught by them either.
        return [place for place in others if place.state is not None] or others

    def _statistics(self, place: Place, *, with_cross_entropy: bool = False) -> Statistics:
        return class_statistics(self.world, place.index, place.measured, with_cross_entropy=with_cross_entropy)

    def _run_of(self, place: Place) -> PreparedTeacher:
        """One teacher at a time comes from its resting state."""
        peer = Peer(self.world, place.member)
        if place.state is not None:
            peer.load_state(load_tensors(place.state), place.measured)
        return self._engine.prepare(peer.model.eval().requires_grad_(False), key=place.member.architecture.id)

    def _view(self, student: int, image: int, row: int, label: int, q_KBC: Tensor, trace: Trace) -> ImageTrace:
        names = self.world.dataset.class_names
        teachers = []
        for k, place in enumerate(self._teachers(student)):
            statistics = self._statistics(place)
            teachers.append(
                TeacherView(
                    client=place.index,
                    architecture=place.member.architecture.id,
                    count=statistics.counts[label],
                    accuracy=statistics.accuracies[label],
                    probability=float(q_KBC[k, row, label]),
                    state=str(trace.state[k, row, label]),
                    weight=float(trace.weight[k, row, label]),
                )
            )
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
            uniform=float(q_KBC[:, row, label].mean()),
            teachers=tuple(teachers),
        )


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
