// The page of `supple serve`. What the server says (labels, names of points, messages) only ever becomes text nodes.

const $ = (id) => document.getElementById(id);
const state = {
  token: "", // in memory only
  models: [],
  model: null,
  file: null,
  asking: null, // the AbortController of the prediction under way
  again: 0, // the timer of one that was refused and is asked again
  answers: new Map(), // by point, of the picture shown
  final: null, // the answer that counts
  history: [], // what /v1/load said in the last 30 s
  gone: false,
  polling: false,
  inView: false,
  steadyUntil: 0,
  visitors: 0, // single requests under way beside a burst
};
const STEPS = 200; // of the slider
const WINDOW = 30_000; // ms that the chart of the load shows
const EVERY = 250; // ms between two looks at the load
const MOST_SENT = 8e6; // bytes of a burst; larger pictures are made smaller first
const KINDS = {
  image: { one: "picture", many: "pictures", types: "image/*" },
  sound: { one: "sound", many: "sounds", types: "audio/*" },
};
const REASONS = {
  asked: "This point was asked for.",
  deadline: "Going on would have missed the deadline.",
  confident: "It was sure enough to stop here.",
  budget: "The budget allows no more.",
  load: "Others were waiting; alone it would have gone further.",
  full: "There was time for the whole model.",
};

// --- words and elements ---

const known = (value) => typeof value === "number" && Number.isFinite(value);
const number = (value) => value.toLocaleString("en");
const digits = (value) => number(value < 10 ? Number(value.toPrecision(2)) : Math.round(value));
const ms = (value) => `${digits(value)} ms`;
const percent = (share) => `${(100 * share).toFixed(share > 0.995 && share < 1 ? 1 : 0)} %`;
const some = (count, things) => `${number(count)} ${count === 1 ? things.one : things.many}`;
const things = () => KINDS[state.model?.accepts?.kind] ?? { one: "file", many: "files", types: "" };
const pause = (time) => new Promise((done) => setTimeout(done, time));

function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text; // the same again would be read out again
}

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function notice(text) {
  $("notice").hidden = !text;
  say("notice", text);
}

// --- asking the server ---

class Problem extends Error {
  constructor(status, code, message, again = 0) {
    super(message);
    Object.assign(this, { status, code, again });
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(state.token && { authorization: `Bearer ${state.token}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw await broken(error);
  }
  if (response.ok) return response;
  const said = (await response.json().catch(() => ({}))).error ?? {};
  if (response.status === 401) askForToken();
  const again = known(said.retry_after_s) ? said.retry_after_s : Number(response.headers.get("retry-after")) || 0;
  throw new Problem(response.status, said.code, said.message ?? `The server answered ${response.status}.`, again);
}

// A connection that broke: the server is gone, or it hung up on a body that it did not want.
async function broken(error) {
  if (error.name === "AbortError") return error;
  if (await alive()) return new Problem(0, "hung_up", "The server hung up. The file may be too large for it.");
  comeBack();
  return new Problem(0, "gone", "The server does not answer.");
}

const alive = () => fetch("live", { cache: "no-store" }).then((response) => response.ok, () => false);

async function comeBack() {
  if (state.gone) return;
  state.gone = true;
  notice("The server does not answer. It may have been stopped. Trying again every two seconds.");
  while (!(await alive())) await pause(2000);
  state.gone = false;
  notice("");
  await start();
}

// The lines of a stream, as they come.
async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read().catch(async (error) => Promise.reject(await broken(error)));
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
  }
}

function predicting(deadline, body, options = {}) {
  const query = new URLSearchParams({ stream: "true", deadline_ms: Number(deadline.toPrecision(4)) });
  return ask(`v1/models/${encodeURIComponent(state.model.name)}/predict?${query}`, { method: "POST", body, ...options });
}

// A picture or sound says what it is; of anything else the server looks at the bytes.
const typeOf = (file) => (/^(image|audio)\//.test(file.type) ? file.type : "application/octet-stream");
const single = (deadline, signal) =>
  predicting(deadline, state.file, { headers: { "content-type": typeOf(state.file) }, signal });

function askForToken() {
  $("token-form").hidden = false;
  $("try").hidden = $("load").hidden = true;
  if (state.token) $("token-form").querySelector("label").textContent = "That was not the token of this server.";
  state.token = "";
  $("token").focus();
}

// --- models ---

async function start() {
  notice("");
  try {
    const { models } = await (await ask("v1/models")).json();
    if (!models.length) await ask("ready"); // 503 while the models are being opened
    state.models = models;
  } catch (problem) {
    if (problem.status === 401 || problem.code === "gone") return;
    notice(problem.again ? `${problem.message} Trying again.` : problem.message);
    if (problem.again) setTimeout(start, 1000 * problem.again);
    return;
  }
  $("token-form").hidden = true;
  $("try").hidden = $("load").hidden = !state.models.length;
  if (!state.models.length) return notice("No model is served. Start one: supple serve RUN");
  const several = state.models.length > 1;
  $("model").replaceChildren(...state.models.map(({ name }) => element("option", { value: name }, name)));
  $("model").hidden = $("model-label").hidden = !several;
  $("model-name").hidden = several;
  take(state.models.find(({ name }) => name === state.model?.name) ?? state.models[0]);
}

function take(model) {
  const before = state.model;
  state.model = model;
  state.history = before?.name === model.name ? state.history : [];
  $("model").value = model.name;
  say("model-name", model.name);
  const classes = model.num_classes > 1 ? `${number(model.num_classes)} classes, ` : "";
  const points = some(model.ladder.length, { one: "point", many: "points" });
  say("facts", `${classes}${points}, ${[model.engine, model.precision].filter(Boolean).join(" ")}`);
  document.title = `${model.name} · supple`;
  if (before?.name !== model.name) {
    const full = model.ladder.findLast(({ expected_ms: time }) => known(time))?.expected_ms ?? 50;
    const [low, high] = range(model);
    $("deadline").value = Math.round((STEPS * Math.log(Math.max(2 * full, 20) / low)) / Math.log(high / low));
    $("count").value = 100;
    $("within").value = Number((100 * (0.4 * full + 2)).toPrecision(2)); // too little for full, enough for something
  }
  if (before && before.accepts?.kind !== model.accepts?.kind) forget();
  offer();
  moved();
  predict();
}

function offer() {
  const { accepts } = state.model;
  const { one, many, types } = things();
  for (const control of [$("file"), $("count"), $("within"), $("steady")]) control.disabled = !accepts;
  $("file").accept = accepts ? [types, ...accepts.endings].filter(Boolean).join(",") : "";
  $("file").setAttribute("aria-label", `Choose a ${one}`);
  $("drop").classList.toggle("off", !accepts);
  $("samples").hidden = accepts?.kind !== "image";
  for (const word of document.querySelectorAll(".things")) word.textContent = many;
  if (!state.file) {
    say("drop-text", accepts ? `Drop a ${one} here, paste one, or choose a file` : "No files for this model");
    say("give-note", accepts && accepts.kind !== "image" ? `${one}: ${accepts.endings.join(" ")}` : "");
    if (accepts) headline(`Waiting for a ${one}`, "", "Each point of the model answers in turn, as far as the deadline lets it.");
    else headline("Arrays only", "", "This model was saved without preprocessing. Programs can ask it over /v2: see the docs below.");
  }
  $("send").disabled = !state.file;
}

// --- the picture ---

function choose(file, sample = "") {
  if (!state.model?.accepts) return;
  forget();
  state.file = file;
  for (const button of $("samples").children) button.setAttribute("aria-pressed", button.dataset.sample === sample);
  const name = sample ? `Sample: ${sample}` : file.name;
  const shown = state.model.accepts.kind === "image";
  $("preview").src = shown ? URL.createObjectURL(file) : "";
  $("preview").alt = name;
  $("preview").hidden = !shown;
  $("drop").classList.toggle("full", shown);
  say("drop-text", shown ? "" : file.name);
  say("give-note", `${name}, ${digits(Math.max(1, file.size / 1000))} kB`);
  $("send").disabled = false;
  predict();
}

function forget() {
  if ($("preview").src.startsWith("blob:")) URL.revokeObjectURL($("preview").src);
  state.file = null;
  $("file").value = "";
  $("preview").removeAttribute("src");
  $("preview").hidden = true;
  $("drop").classList.remove("full");
  clear();
}

async function chooseSample(name) {
  try {
    const blob = await (await ask(`page/samples/${name}.png`)).blob();
    choose(new File([blob], `${name}.png`, { type: blob.type }), name);
  } catch (problem) {
    failed(problem);
  }
}

// --- answers ---

const clear = () => ([state.answers, state.final] = [new Map(), null]);

function headline(label, sure, why, others = "", waiting = true) {
  $("answer").classList.toggle("waiting", waiting);
  for (const [id, text] of Object.entries({ label, sure, why, others })) say(id, text);
}

async function predict() {
  state.asking?.abort();
  clearTimeout(state.again);
  if (!state.file || !state.model?.accepts) return render();
  const asking = (state.asking = new AbortController());
  $("try").classList.add("busy");
  let first = true;
  try {
    for await (const line of lines(await single(deadline(), asking.signal))) {
      if (asking !== state.asking) return;
      if (first) clear();
      first = false;
      if (line.error) throw new Problem(0, line.error.code, line.error.message, line.error.retry_after_s);
      state.answers.set(line.point, line);
      if (line.final) state.final = line;
      render();
    }
    state.final ??= [...state.answers.values()].at(-1);
    render();
    if (state.final) succeeded(state.final, REASONS[state.final.reason] ?? `Reason: ${state.final.reason}.`);
  } catch (problem) {
    if (asking !== state.asking || problem.name === "AbortError") return;
    if (first) clear();
    failed(problem);
  } finally {
    if (asking === state.asking) $("try").classList.remove("busy");
  }
}

const sureness = ({ label, scores }) => scores?.find((one) => one.label === label)?.score;

function succeeded(answer, reason) {
  const sure = sureness(answer);
  const waited = answer.queue_ms >= 0.1 ? `, ${digits(answer.queue_ms)} of them decoding and waiting` : "";
  const late = answer.in_time === false ? " The deadline had passed." : "";
  const others = (answer.scores ?? []).filter(({ label, score }) => label !== answer.label && score >= 0.005).slice(0, 3);
  const list = others.map(({ label, score }) => `${label} ${percent(score)}`).join(", ");
  const why = `${answer.point} answered after ${ms(answer.queue_ms + answer.compute_ms)}${waited}. ${reason}${late}`;
  headline(answer.label, known(sure) ? percent(sure) : "", why, list && `Less likely: ${list}`, false);
}

function failed(problem) {
  const before = problem.code === "late" ? [...state.answers.values()].at(-1) : null;
  state.final = before ?? null;
  render();
  if (before) return succeeded(before, `${problem.message} This exit had come before.`);
  const cheapest = Math.min(...state.model.ladder.map((row) => row.expected_ms).filter(known));
  const hopeless = problem.code === "overloaded" && deadline() < cheapest; // on an idle server, too
  const wait = problem.status === 401 || hopeless ? 0 : problem.again;
  const again = wait ? ` Asking again in ${digits(wait)} s.` : "";
  headline(hopeless ? "Too little time" : "No answer", "", `${problem.message}${again}`);
  if (wait) state.again = setTimeout(predict, 1000 * wait);
}

function render() {
  const rows = state.model.ladder.map(line);
  $("exits").replaceChildren(...rows);
  drawCurve();
}

function line(row) {
  const answer = state.answers.get(row.point);
  const chosen = state.final?.point === row.point;
  const facts = [known(row.score) && scored(row), known(row.expected_ms) && `about ${ms(row.expected_ms)}`];
  const name = element("th", { scope: "row" }, ...breakable(row.point), element("small", {}, facts.filter(Boolean).join(", ") || "not measured"));
  const kind = chosen ? "chosen" : answer ? "passed" : "off";
  if (!answer) return element("tr", { class: kind }, name, element("td", {}, state.final ? "not run" : ""), element("td"));
  const sure = sureness(answer);
  const said = element("div", { class: "said" }, element("span", { title: answer.label }, answer.label), element("span", {}, known(sure) ? percent(sure) : ""));
  const cell = element("td", {}, said);
  if (known(sure)) {
    const filling = element("i");
    filling.style.width = `${100 * sure}%`;
    cell.append(element("div", { class: "share", "aria-hidden": "true" }, filling));
  }
  const time = element("td", {}, ms(answer.queue_ms + answer.compute_ms));
  if (chosen) time.append(element("small", {}, "answered"));
  return element("tr", { class: kind }, name, cell, time);
}

// A long name may be broken after a comma.
const breakable = (name) => name.split(/(?<=,)/).flatMap((part, i) => (i ? [element("wbr"), part] : [part]));
const scored = (row) => `${figure(row, row.score)}${row.unit ? ` ${row.unit}` : ""} ${row.metric_label ?? row.metric ?? ""}`.trim();
const figure = (row, value) => (row.unit === "%" ? (100 * value).toFixed(1) : String(Number(value.toPrecision(3))));

// --- the curve and the deadline ---

// Of the slider, in ms: a tenth of the cheapest point's time to five times full's, and to what opening a file takes
// beside the smallest of networks.
function range(model) {
  const times = model.ladder.map(({ expected_ms: time }) => time).filter((time) => known(time) && time > 0);
  return times.length ? [Math.min(...times) / 10, Math.max(50, 5 * Math.max(...times))] : [1, 1000];
}

function deadline() {
  const [low, high] = range(state.model);
  return low * (high / low) ** ($("deadline").value / STEPS);
}

function moved() {
  say("deadline-text", ms(deadline()));
  $("deadline").setAttribute("aria-valuetext", ms(deadline()));
  render();
}

function drawCurve() {
  const rows = state.model.ladder;
  const timed = rows.filter((row) => known(row.expected_ms) && row.expected_ms > 0);
  const scores = timed.map(({ score }) => score).filter(known);
  const missing = [
    timed.length ? "" : "No point has been timed here, so there is no curve.",
    timed.length && !scores.length ? "The points have no scores yet: supple evaluate RUN measures them." : "",
    scores.length && scores.length < timed.length ? "Points without a score are left out." : "",
  ].filter(Boolean);
  const metric = rows.find(({ metric }) => metric) ?? {};
  const direction = metric.higher_is_better === false ? ", lower is better" : "";
  const unit = `${metric.metric_label ?? metric.metric ?? "score"}${metric.unit ? `, ${metric.unit}` : ""}${direction}`;
  say("axis", timed.length ? `expected time of one ${things().one}, ms` : "");
  say("curve-caption", [scores.length ? unit : "", ...missing].filter(Boolean).join(". "));
  const width = $("curve").clientWidth;
  const box = { left: scores.length ? 44 : 10, right: width - 14, top: 14, bottom: scores.length ? 224 : 64 };
  $("deadline").style.marginLeft = `${box.left - 10}px`; // half a thumb: its middle stands below the line
  $("deadline").style.width = `${box.right - box.left + 20}px`;
  if (width < 80 || !timed.length) return $("curve").replaceChildren();
  $("curve").replaceChildren(curve(timed.filter((row) => !scores.length || known(row.score)), scores, width, box, unit));
}

function curve(rows, scores, width, box, unit) {
  const [low, high] = range(state.model);
  const x = (time) => box.left + ((box.right - box.left) * Math.log(time / low)) / Math.log(high / low);
  const spread = Math.max(...scores) - Math.min(...scores) || Math.abs(scores[0]) || 1;
  const [least, most] = [Math.min(...scores) - 0.15 * spread, Math.max(...scores) + 0.15 * spread];
  const level = (score) => box.bottom - ((box.bottom - box.top) * (score - least)) / (most - least);
  const y = (row) => (scores.length ? level(row.score) : box.bottom - 18);
  const name = `${scores.length ? unit : "points"} against the time of one ${things().one}, in ms`;
  const picture = drawn("svg", { width, height: box.bottom + 42, role: "img", "aria-label": name });
  const limit = Math.min(box.right, Math.max(box.left, x(deadline())));
  picture.append(drawn("rect", { class: "allowed", x: box.left, y: box.top, width: limit - box.left, height: box.bottom - box.top }));
  if (scores.length) picture.append(...scale(rows[0], least, most, level, box));
  picture.append(...clock(low, high, x, box));
  picture.append(drawn("line", { class: "limit", x1: limit, x2: limit, y1: box.top, y2: box.bottom }));
  const places = rows.map((row) => ({ row, x: x(row.expected_ms), y: y(row) })).sort((a, b) => a.x - b.x);
  if (scores.length) picture.append(drawn("path", { class: "path", d: `M${frontier(places).map((at) => `${at.x},${at.y}`).join("L")}` }));
  picture.append(...places.flatMap(dots), ...names(places, limit, box));
  return picture;
}

// What no cheaper point beats: the others are no reason to wait longer.
function frontier(places) {
  const kept = [];
  for (const at of places) if (!kept.length || at.y < kept.at(-1).y) kept.push(at);
  return kept;
}

function status(row) {
  return state.final?.point === row.point ? "chosen" : state.answers.has(row.point) ? "passed" : "";
}

function dots({ row, x, y }) {
  const kind = status(row);
  const dot = drawn("circle", { class: `dot ${kind}`, cx: x, cy: y, r: kind === "chosen" ? 7 : 4.5 });
  return kind === "chosen" ? [drawn("circle", { class: "halo", cx: x, cy: y, r: 15 }), dot] : [dot];
}

// Names where there is room: the one that answered first, then the others.
function names(places, limit, area) {
  const taken = places.map(({ x, y }) => ({ left: x - 7, right: x + 7, top: y - 7, bottom: y + 7 }));
  taken.push({ left: limit - 2, right: limit + 2, top: 0, bottom: Infinity });
  const first = [...places].sort((a, b) => (status(b.row) === "chosen") - (status(a.row) === "chosen"));
  return first.flatMap(({ row, x, y }) => {
    const size = 7.4 * row.point.length;
    for (const [left, middle] of [[x + 11, y + 14], [x - 11 - size, y - 12], [x - size / 2, y - 18], [x - size / 2, y + 20], [x + 11, y - 12]]) {
      const box = { left, right: left + size, top: middle - 8, bottom: middle + 8 };
      const clash = taken.some((other) => box.left < other.right && box.right > other.left && box.top < other.bottom && box.bottom > other.top);
      if (clash || left < area.left || box.right > area.right + 14 || box.bottom > area.bottom) continue;
      taken.push(box);
      return [drawn("text", { class: status(row), x: left, y: middle + 4 }, row.point)];
    }
    return [];
  });
}

function scale(row, least, most, level, box) {
  const rough = (most - least) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((times) => times * power >= rough) * power;
  const marks = [];
  for (let mark = Math.ceil(least / step) * step; mark <= most; mark += step) {
    const text = row.unit === "%" ? Number((100 * mark).toFixed(3)) : Number(mark.toPrecision(4));
    marks.push(drawn("line", { class: "grid", x1: box.left, x2: box.right, y1: level(mark), y2: level(mark) }));
    marks.push(drawn("text", { x: box.left - 8, y: level(mark) + 4, "text-anchor": "end" }, String(text)));
  }
  return marks;
}

function clock(low, high, x, box) {
  const marks = [drawn("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom })];
  let end = -Infinity;
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const mark of [1, 2, 5].map((times) => Number((times * 10 ** power).toPrecision(1)))) {
      const [text, at] = [number(mark), x(mark)];
      if (mark < low || mark > high || at - 4 * text.length < end + 12 || at > box.right - 28) continue;
      end = at + 4 * text.length;
      marks.push(drawn("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }));
      marks.push(drawn("text", { x: at, y: box.bottom + 20, "text-anchor": "middle" }, text));
    }
  }
  return [...marks, drawn("text", { x: box.right, y: box.bottom + 20, "text-anchor": "end" }, "ms")];
}

// --- under load ---

// The picture, small enough that a request may hold it so many times.
async function smaller(file, count) {
  if (count * file.size <= MOST_SENT || state.model.accepts.kind !== "image") return file;
  const picture = await createImageBitmap(file).catch(() => null);
  if (!picture) return file;
  const share = Math.min(1, 320 / Math.max(picture.width, picture.height));
  const canvas = element("canvas", { width: Math.max(1, share * picture.width), height: Math.max(1, share * picture.height) });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.85));
}

async function burst() {
  const [count, within, began] = [$("count").valueAsNumber, $("within").valueAsNumber, performance.now()];
  const [body, one] = [new FormData(), await smaller(state.file, count)];
  for (let i = 0; i < count; i++) body.append("file", one, "input");
  const found = { points: new Map(), problems: new Map(), left: count };
  const add = (kind, what, more = 1) => (kind.set(what, (kind.get(what) ?? 0) + more), (found.left -= more));
  $("send").disabled = true;
  state.steadyUntil = Infinity;
  say("burst-result", `${some(count, things())} sent.`);
  try {
    for await (const line of lines(await predicting(within, body))) {
      if (line.error) add(found.problems, line.error.code, line.index === null ? found.left : 1);
      else if (line.final) add(found.points, line.point);
    }
    say("burst-result", told(found, count, (performance.now() - began) / 1000));
  } catch (problem) {
    say("burst-result", `${problem.message}${problem.again ? ` It can be sent again in ${digits(problem.again)} s.` : ""}`);
  } finally {
    $("send").disabled = !state.file;
    state.steadyUntil = performance.now() + WINDOW / 2;
  }
}

function told({ points, problems, left }, count, seconds) {
  const list = state.model.ladder.filter(({ point }) => points.has(point)).map(({ point }) => `${number(points.get(point))} by ${point}`);
  const bad = [...problems].map(([code, times]) => (code === "late" ? `${number(times)} late` : `${number(times)} refused (${code})`));
  if (left) bad.push(`${number(left)} without an answer`);
  const answered = [...points.values()].reduce((sum, times) => sum + times, 0);
  const parts = [list.length ? `${number(answered)} of ${number(count)} answered in ${seconds.toFixed(1)} s: ${list.join(", ")}` : "None answered", ...bad];
  return `${parts.join("; ")}.`;
}

// Beside a burst, what somebody gets who asks for one: with the same deadline.
async function visit() {
  if (!$("steady").checked || !state.file || performance.now() > state.steadyUntil || state.visitors >= 2) return;
  state.visitors++;
  try {
    for await (const line of lines(await single($("within").valueAsNumber))) void line;
  } catch {
    // A refusal is seen as a gap in the chart, and a server that is gone says so above.
  } finally {
    state.visitors--;
  }
}

async function look() {
  if (state.polling || state.gone || document.hidden || !state.inView || $("load").hidden) return;
  state.polling = true;
  visit();
  try {
    const load = await (await ask("v1/load")).json();
    const now = performance.now();
    state.history = state.history.filter(({ time }) => now - time < WINDOW + 1000);
    state.history.push({ time: now, waiting: load.waiting, answered: load.answered?.[state.model.name] ?? {} });
    drawHistory();
    const parts = [`${number(load.waiting)} waiting, ${number(load.running)} running`, known(load.slots) && `room for ${number(load.slots)}`];
    if (known(load.p50_ms)) parts.push(`half of the answers within ${ms(load.p50_ms)}`);
    say("load-now", `Now: ${parts.filter(Boolean).join(", ")}.`);
  } catch (problem) {
    say("load-now", problem.message);
  } finally {
    state.polling = false;
  }
}

// Between two looks: how many answers each point gave.
function steps() {
  const found = [];
  for (const [i, after] of state.history.entries()) {
    const before = state.history[i - 1];
    if (!before || after.time - before.time > 2000) continue; // nobody looked in between
    const given = new Map(state.model.ladder.map(({ point }) => [point, Math.max(0, (after.answered[point] ?? 0) - (before.answered[point] ?? 0))]));
    found.push({ from: before.time, to: after.time, given, waiting: after.waiting });
  }
  return found;
}

function drawHistory() {
  const width = $("history").clientWidth;
  if (width < 80) return;
  const points = state.model.ladder.map(({ point }) => point);
  const found = steps();
  const longest = Math.max(...points.map((point) => point.length), 7);
  const [left, right] = [Math.min(7.6 * longest + 14, 0.4 * width), width - 50];
  const tall = points.length > 8 ? 18 : 36;
  const queueTop = points.length * tall + 14;
  const bottom = queueTop + 44;
  const now = state.history.at(-1)?.time ?? 0;
  const x = (time) => Math.max(left, right - ((right - left) * (now - time)) / WINDOW);
  const most = Math.max(1, ...found.flatMap(({ given }) => [...given.values()]));
  const longestQueue = Math.max(1, ...found.map(({ waiting }) => waiting));
  const picture = drawn("svg", { width, height: bottom + 24, role: "img", "aria-label": "Answers of each point, and how many wait, over the last 30 seconds" });
  for (const [place, point] of points.entries()) {
    const base = (points.length - place) * tall;
    const short = point.length * 7.6 > left - 10 ? `${point.slice(0, Math.floor((left - 22) / 7.6))}…` : point;
    picture.append(drawn("text", { x: left - 10, y: base - 3, "text-anchor": "end" }, short));
    picture.append(drawn("line", { class: "grid", x1: left, x2: right, y1: base + 0.5, y2: base + 0.5 }));
    for (const { from, to, given } of found) {
      if (!given.get(point) || x(to) <= left) continue;
      const height = Math.max(3, (tall - 5) * Math.sqrt(given.get(point) / most));
      picture.append(drawn("rect", { class: "bar", x: x(from) + 0.5, y: base - height, width: Math.max(1, x(to) - x(from) - 1), height }));
    }
  }
  const depth = (waiting) => bottom - ((bottom - queueTop) * waiting) / longestQueue;
  const outline = found.filter(({ to }) => x(to) > left).flatMap(({ from, to, waiting }) => [[x(from), depth(waiting)], [x(to), depth(waiting)]]);
  if (outline.length) {
    const corners = [[outline[0][0], bottom], ...outline, [outline.at(-1)[0], bottom]];
    picture.append(drawn("path", { class: "queue", d: `M${corners.map((corner) => corner.join(",")).join("L")}` }));
    if (found.some(({ waiting }) => waiting)) picture.append(drawn("text", { x: right + 8, y: queueTop + 9 }, number(longestQueue)));
  }
  picture.append(drawn("text", { x: left - 10, y: bottom - 3, "text-anchor": "end" }, "waiting"));
  picture.append(drawn("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  for (const [seconds, text, anchor] of [[30, "30 s ago", "start"], [20, "20 s", "middle"], [10, "10 s", "middle"], [0, "now", "end"]]) {
    if (seconds === 20 && width < 480) continue;
    picture.append(drawn("text", { x: right - ((right - left) * seconds) / 30, y: bottom + 18, "text-anchor": anchor }, text));
  }
  const tallest = found.some(({ given }) => [...given.values()].some(Boolean)) ? `; the tallest bar is ${number(most)}` : "";
  say("history-caption", `Answers of the last 30 seconds, by the point that gave them${tallest}`);
  $("history").replaceChildren(picture);
}

// --- what the reader does ---

let typing = 0;
$("deadline").addEventListener("input", () => {
  moved();
  clearTimeout(typing);
  typing = setTimeout(predict, 120);
});
$("model").addEventListener("change", () => take(state.models.find(({ name }) => name === $("model").value)));
$("file").addEventListener("change", () => $("file").files.length && choose($("file").files[0]));
$("samples").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) chooseSample(button.dataset.sample);
});
$("preview").addEventListener("error", () => {
  $("preview").hidden = true;
  $("drop").classList.remove("full");
  say("drop-text", state.file ? `${state.file.name} (this browser cannot show it)` : "");
});
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = $("token").value;
  $("token").value = "";
  start();
});
$("burst").addEventListener("submit", (event) => {
  event.preventDefault();
  burst();
});
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    const inside = kind === "dragover" || kind === "dragenter";
    $("drop").classList.toggle("over", inside && !!state.model?.accepts);
    if (kind === "drop" && event.dataTransfer.files.length) choose(event.dataTransfer.files[0]);
  });
}
document.addEventListener("paste", (event) => {
  if (event.clipboardData?.files.length) choose(event.clipboardData.files[0]);
});
new ResizeObserver(() => state.model && (drawCurve(), drawHistory())).observe($("curve"));
new IntersectionObserver(([entry]) => (state.inView = entry.isIntersecting)).observe($("load"));
setInterval(look, EVERY);
start();
