// The inspector: one student, one test image, one class; what every teacher said, and what the rule made of it.

const STATES = {
  k: { word: "kept", sign: "●", kind: "kept" },
  u: { word: "dropped for support", sign: "○", kind: "unsupported" },
  o: { word: "dropped as outlier", sign: "✕", kind: "outlier" },
};
const MOST_CLASSES = 20; // with more, only the ten that matter most are drawn beside each other
const TOP_CLASSES = 10;

// Rounded as crad explain does it, halves upwards.
const percent = (share) => (Math.floor(share * 1000 + 0.5) / 10).toFixed(1);
const whole = (share) => Math.floor(share * 100 + 0.5);
const samples = (count) => String(Math.floor(count * 100 + 0.5) / 100);
const at = (share) => `left:${Math.min(100, Math.max(0, share * 100))}%`;

/** A sample among others: a picture, or of a row or a text its number. */
function smallSample(sample, name, word) {
  if (sample.png) return make("img", { src: `data:image/png;base64,${sample.png}`, alt: name });
  return make("span", { class: "row-number" }, `${word} ${sample.index}`);
}

/** A row as a list of its columns; nothing for a picture. */
function wholeRow(sample) {
  return (sample.row ?? []).flatMap(([column, value]) => [make("dt", {}, column), make("dd", {}, value)]);
}

class Inspector {
  constructor(frame, inspections) {
    this.frame = frame;
    this.inspections = inspections;
    this.order = "client";
    this.openRun(0);
    this.listen();
  }

  find(selector) {
    return this.frame.querySelector(selector);
  }

  listen() {
    const on = (id, act) => this.find(id).addEventListener("change", (event) => act(event.target.value));
    on("#choose-run", (value) => this.openRun(Number(value)));
    on("#choose-student", (value) => this.choose({ student: Number(value) }));
    on("#choose-class", (value) => this.choose({ label: Number(value) }));
    on("#choose-order", (value) => {
      this.order = value;
      this.show();
    });
    on(".thumbs", (value) => {
      const image = Number(value);
      this.choose({ image, label: this.run.images[image].label });
    });
  }

  openRun(number) {
    this.run = this.inspections[number];
    this.fillRuns(number);
    this.fillCases();
    this.fillChoices();
    const first = this.run.cases[0];
    if (first) this.openCase(first);
    else this.choose({ student: 0, image: 0, label: this.run.images[0].label });
  }

  openCase(one) {
    this.choose({
      student: this.run.students.findIndex((student) => student.client === one.student),
      image: this.run.images.findIndex((image) => image.index === one.image),
      label: one.class,
    });
  }

  /** What one sample and several are called; inspections of images do not say it. */
  get words() {
    return this.run.words ?? { one: "image", several: "images" };
  }

  choose(change) {
    this.choice = { ...this.choice, ...change };
    this.show();
  }

  fillRuns(number) {
    const options = this.inspections.map((one, i) => make("option", { value: i, selected: i === number }, one.title));
    this.find("#choose-run").replaceChildren(...options);
    this.find(".of-run").hidden = this.inspections.length < 2;
  }

  fillCases() {
    const names = { success: "Where the rule did clearly well", failure: "Where it did clearly badly" };
    const groups = Object.entries(names).map(([kind, name]) => {
      const buttons = this.run.cases.filter((one) => one.kind === kind).map((one) => this.caseButton(one));
      const rule = `${this.run.rules[kind]} Searched: the first ${this.run.searched_images} test ${this.words.several}.`;
      return make(
        "div", { class: "case-group", role: "group", "aria-label": name },
        make("h3", {}, name),
        buttons.length ? make("div", { class: "buttons" }, ...buttons) : make("p", {}, "None was found."),
        make("p", {}, rule),
      );
    });
    this.find(".cases").replaceChildren(...groups);
  }

  /** A picture, whose it is, and what the true class got from a uniform average and from the rule. */
  caseButton(one) {
    const image = this.run.images.findIndex((other) => other.index === one.image);
    const own = this.run.students.find((student) => student.client === one.student);
    const [uniform, target] = ["uniform", "target"].map((key) => whole(own[key][image][one.class]));
    const button = make(
      "button", { type: "button", class: "case", title: `uniform average → target, by ${percent(one.margin)} points` },
      smallSample(this.run.images[image], "", this.words.one),
      make(
        "span", {},
        make("span", { class: "whose" }, `${this.run.classes[one.class]}, client ${one.student}:`),
        " ",
        make("span", { class: "change" }, `${uniform} → ${target} %`),
      ),
    );
    button.addEventListener("click", () => this.openCase(one));
    button.shows = one;
    return button;
  }

  fillChoices() {
    this.find("fieldset legend").textContent = `Test ${this.words.one}`;
    const { students, classes, images } = this.run;
    const option = (text, value) => make("option", { value }, text);
    this.find("#choose-student").replaceChildren(...students.map((one, i) => option(`client ${one.client}`, i)));
    this.find("#choose-class").replaceChildren(...classes.map((name, i) => option(`${i}: ${name}`, i)));
    const thumbs = images.map((image, i) => {
      const name = `test ${this.words.one} ${image.index}, ${classes[image.label]}`;
      return make(
        "label", { title: name },
        make("input", { type: "radio", name: "test-image", value: i }),
        smallSample(image, name, this.words.one),
      );
    });
    this.find(".thumbs").replaceChildren(...thumbs);
  }

  /** The chosen trace: the figures of the class, and one entry per teacher. */
  trace() {
    const { student, image, label } = this.choice;
    const own = this.run.students[student];
    const teachers = own.teachers.map((client, k) => {
      const n = this.run.teachers.findIndex((teacher) => teacher.client === client);
      const about = this.run.teachers[n];
      return {
        client,
        architecture: about.architecture,
        isLiar: Boolean(about.is_liar),
        count: own.support ? own.support[k][label] : about.counts[label],
        accuracy: own.accuracies ? own.accuracies[k][label] : about.accuracies[label],
        alarms: own.false_alarms ? own.false_alarms[k][label] : null,
        says: this.run.probabilities[image][n][label],
        corrected: this.run.corrected ? this.run.corrected[image][n][label] : null,
        weight: own.weights[image][k][label],
        state: own.states[image][k][label],
      };
    });
    const of = (key) => own[key][image][label];
    const trace = { consensus: of("consensus"), band: of("band"), target: of("target"), uniform: of("uniform") };
    trace.low = Math.max(0, trace.consensus - trace.band);
    trace.high = Math.min(1, trace.consensus + trace.band);
    return { ...trace, teachers, className: this.run.classes[label] };
  }

  show() {
    const { student, image, label } = this.choice;
    const { run } = this;
    const trace = this.trace();
    this.find("#choose-student").value = student;
    this.find("#choose-class").value = label;
    this.find("#choose-order").value = this.order;
    this.frame.querySelectorAll(".thumbs input").forEach((input, i) => {
      input.checked = i === image;
    });
    this.frame.querySelectorAll(".cases button").forEach((button) => {
      const one = button.shows;
      const isShown = one.student === run.students[student].client && one.image === run.images[image].index;
      button.setAttribute("aria-pressed", String(isShown && one.class === label));
    });
    this.find(".said").textContent = sentence(trace);
    const heard = run.corrected ? " once its own class shares are taken out (prior out)" : "";
    this.find("#caption-teachers").textContent =
      `What every teacher says about ${trace.className}${heard}, on one axis in percent; shaded: the accepted band around the consensus (dashed).`;
    this.find(".teachers").replaceChildren(...this.teacherTable(trace));
    this.find(".all-classes").replaceChildren(...this.classTable());
    const shown = run.images[image];
    const truth = `test ${this.words.one} ${shown.index}, true class ${run.classes[shown.label]}`;
    const picture = this.find("figure img");
    picture.hidden = !shown.png;
    if (shown.png) picture.src = `data:image/png;base64,${shown.png}`;
    picture.alt = truth;
    this.find("figure .row").replaceChildren(...wholeRow(shown));
    this.find("figure .text").textContent = shown.text ?? "";
    this.find("figcaption").textContent = `T${truth.slice(1)}; student: client ${run.students[student].client}, round ${run.round}`;
    const words = `--student ${run.students[student].client} --image ${shown.index} --class ${label}`;
    const command = `crad explain ${run.run} ${words}`.split(" ").flatMap((word) => [make("span", {}, word), " "]);
    this.find(".explain-command").replaceChildren(...command.slice(0, -1));
  }

  teacherTable(trace) {
    const by = { client: (one) => one.client, count: (one) => -one.count, says: (one) => -(one.corrected ?? one.says), weight: (one) => -one.weight };
    const key = by[this.order];
    const isVerified = trace.teachers.some((one) => one.alarms !== null);
    const isCorrected = trace.teachers.some((one) => one.corrected !== null);
    this.find(".teachers").classList.toggle("verified", isVerified || isCorrected); // more columns have to fit
    const ordered = [...trace.teachers].sort((one, other) => key(one) - key(other) || one.client - other.client);
    const ticks = [0, 25, 50, 75, 100].map((tick) => make("span", { class: "tick", style: at(tick / 100) }, String(tick)));
    const heads = ["teacher", "samples"].map((text, i) => make("th", { scope: "col", class: i ? null : "words" }, text));
    const head = make(
      "tr", {}, ...heads,
      make("th", { scope: "col", class: "axis", "aria-label": "says, drawn" }, make("div", { class: "track" }, ...ticks)),
      make("th", { scope: "col" }, "says %"),
      ...(isCorrected ? [make("th", { scope: "col" }, "prior out %")] : []),
      make("th", { scope: "col", class: "words" }, "state"),
      make("th", { scope: "col" }, "weight %"),
      make("th", { scope: "col" }, "accuracy %"),
      ...(isVerified ? [make("th", { scope: "col" }, "false alarms %")] : []),
    );
    const rows = ordered.map((one) => {
      const state = STATES[one.state];
      return make(
        "tr", {},
        make("th", { scope: "row", class: "words", title: one.architecture }, `client ${one.client}${one.isLiar ? ", lies" : ""}`),
        make("td", { "data-label": "samples" }, samples(one.count)),
        plotCell(trace, one.corrected ?? one.says, state.sign, state.kind),
        make("td", { class: "says", "data-label": "says %" }, percent(one.says)),
        ...(isCorrected ? [make("td", { "data-label": "prior out %" }, percent(one.corrected))] : []),
        make("td", { class: `words state ${state.kind}` }, `${state.sign} ${state.word}`),
        make("td", { "data-label": "weight %" }, percent(one.weight)),
        make("td", { "data-label": "accuracy %" }, percent(one.accuracy)),
        ...(isVerified ? [make("td", { "data-label": "false alarms %" }, percent(one.alarms))] : []),
      );
    });
    const foot = [
      ["consensus", trace.consensus, "┆", `accepted ${percent(trace.low)} to ${percent(trace.high)} %`],
      ["uniform", trace.uniform, "◇", "a plain mean"],
      ["target", trace.target, "◆", "the student learns it"],
    ].map(([name, share, sign, words]) =>
      make(
        "tr", {},
        make("th", { scope: "row", class: "words", colspan: 2 }, `${sign} ${name === "uniform" ? "uniform average" : name}`),
        plotCell(trace, share, sign, name),
        make("td", { class: "says", colspan: isCorrected ? 2 : 1 }, percent(share)),
        make("td", { class: "words", colspan: isVerified ? 4 : 3 }, words),
      ),
    );
    return [make("thead", {}, head), make("tbody", {}, ...rows), make("tfoot", {}, ...foot)];
  }

  /** Target against uniform average for the classes of this image. */
  classTable() {
    const { student, image, label } = this.choice;
    const own = this.run.students[student];
    const target = own.target[image];
    const uniform = own.uniform[image];
    const truth = this.run.images[image].label;
    let shown = this.run.classes.map((_, i) => i);
    let title = `All classes of this ${this.words.one}`;
    if (shown.length > MOST_CLASSES) {
      const height = (i) => Math.max(target[i], uniform[i]);
      shown.sort((one, other) => height(other) - height(one) || one - other);
      shown = [...new Set([...shown.slice(0, TOP_CLASSES), truth, label])].sort((one, other) => one - other);
      title = `The classes of this ${this.words.one} that are thought of most`;
    }
    const highest = Math.max(...shown.map((i) => Math.max(target[i], uniform[i])));
    const rows = shown.map((i) => {
      const button = make("button", { type: "button", title: this.run.classes[i] }, this.run.classes[i]);
      button.addEventListener("click", () => {
        this.choose({ label: i });
        this.find(".all-classes tr[aria-current] button").focus();
      });
      const track = make(
        "div", { class: "track" },
        make("span", { class: "bar", style: `width:${(target[i] / highest) * 100}%` }),
        make("span", { class: "mark uniform", style: at(uniform[i] / highest) }, "◇"),
      );
      return make(
        "tr", { "aria-current": i === label ? "true" : null },
        make("th", { scope: "row", class: "words" }, button, i === truth ? " ✓" : ""),
        make("td", { class: "axis" }, track),
        make("td", {}, percent(target[i])),
        make("td", {}, percent(uniform[i])),
      );
    });
    const heads = ["class", "", "target", "uniform"].map((text, i) =>
      make("th", { scope: "col", class: ["words", "axis"][i] ?? null }, text),
    );
    this.find("#caption-classes").textContent = `${title}, in percent. Bar: target; ◇: uniform average; ✓: the true class.`;
    return [make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)];
  }
}

function plotCell(trace, share, sign, kind) {
  const rules = [0, 0.25, 0.5, 0.75, 1].map((tick) => make("span", { class: "rule", style: at(tick) }));
  const width = `width:${(trace.high - trace.low) * 100}%`;
  return make(
    "td", { class: "axis", "aria-hidden": "true" },
    make(
      "div", { class: "track" }, ...rules,
      make("span", { class: "band", style: `${at(trace.low)};${width}` }),
      make("span", { class: "line", style: at(trace.consensus) }),
      kind === "consensus" ? "" : make("span", { class: `mark ${kind}`, style: at(share) }, sign),
    ),
  );
}

/** What happened, in plain words; crad explain says the same. */
function sentence(trace) {
  const { teachers, className } = trace;
  const most = teachers.reduce((best, one) => (one.count > best.count ? one : best));
  const num = (state) => teachers.filter((one) => one.state === state).length;
  const accepted = `the accepted ${percent(trace.low)} to ${percent(trace.high)} %`;
  const known =
    most.alarms === null
      ? `Client ${most.client} ${most.isLiar ? "claims" : "holds"} most samples of ${className} (${samples(most.count)}) and says`
      : `Most samples of ${className} (${samples(most.count)}) speak for client ${most.client}, which says`;
  const heard = most.corrected === null ? "" : ` (${percent(most.corrected)} % without its own class shares)`;
  const holds = `${known} ${percent(most.says)} %${heard}`;
  const alike = teachers.some((one) => one.weight > 0) ? "all are averaged alike" : "nobody is heard";
  const became = {
    k: `${holds}, within ${accepted}, so it is kept with ${percent(most.weight)} % of the weight`,
    o: `${holds}, but lies outside ${accepted}, so it is dropped`,
    u: `No teacher has enough samples of ${className} (the most: client ${most.client} with ${samples(most.count)}), so ${alike}`,
  }[most.state];
  return (
    `${became}; the target is ${percent(trace.target)} %, a uniform average would say ${percent(trace.uniform)} %. ` +
    `Of ${teachers.length} teachers ${num("k")} are kept, ${num("u")} dropped for support, ${num("o")} dropped as outliers.`
  );
}

const FRAME = document.getElementById("inspector-frame");
if (FRAME) {
  FRAME.hidden = false;
  new Inspector(FRAME, DATA.inspections);
}
