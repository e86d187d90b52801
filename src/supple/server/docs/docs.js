// Shows /openapi.json: every operation with its parameters, bodies and answers. Text is only ever set as text.

function element(name, text = "", ...children) {
  const made = document.createElement(name);
  made.textContent = text;
  made.append(...children);
  return made;
}

function table(head, rows) {
  const cells = (kind, row) => element("tr", "", ...row.map((cell) => element(kind, String(cell ?? ""))));
  return element("table", "", element("thead", "", cells("th", head)), element("tbody", "", ...rows.map((row) => cells("td", row))));
}

function typeOf(schema) {
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  return [schema.type ?? "any"].flat().join(" or ") + (schema.format ? ` (${schema.format})` : "");
}

// A schema as a text of one line for each property, nested ones indented.
function shapeOf(schema, schemas, depth = 0) {
  const found = schema.$ref ? schemas[schema.$ref.split("/").at(-1)] ?? {} : schema;
  const inner = found.type === "array" ? found.items ?? {} : found;
  const resolved = inner.$ref ? schemas[inner.$ref.split("/").at(-1)] ?? {} : inner;
  if (!resolved.properties || depth > 4) return "";
  const must = new Set(resolved.required ?? []);
  return Object.entries(resolved.properties)
    .map(([name, one]) => `${"  ".repeat(depth)}${name}${must.has(name) ? "" : "?"}: ${typeOf(one)}\n${shapeOf(one, schemas, depth + 1)}`)
    .join("");
}

function contents(title, content, schemas) {
  const parts = [];
  for (const [kind, { schema }] of Object.entries(content ?? {})) {
    parts.push(element("p", "", element("strong", title), " ", element("code", kind), `: ${typeOf(schema)}`));
    const shape = shapeOf(schema, schemas);
    if (shape) parts.push(element("pre", shape.trimEnd()));
  }
  return parts;
}

function operation(path, method, about, schemas) {
  const head = element("summary", "", Object.assign(element("span", method.toUpperCase()), { className: "method" }));
  head.append(" ", element("code", path), ` · ${about.summary}`);
  const body = element("div");
  if (about.parameters?.length)
    body.append(table(["parameter", "in", "type", ""], about.parameters.map((one) => [one.name, one.in, typeOf(one.schema), one.description])));
  body.append(...contents("Body", about.requestBody?.content, schemas));
  body.append(...contents("Answer", about.responses["200"]?.content, schemas));
  body.append(table(["status", "meaning"], Object.entries(about.responses).map(([status, one]) => [status, one.description])));
  return element("details", "", head, body);
}

async function show() {
  const main = document.getElementById("operations");
  const answer = await fetch("/openapi.json");
  if (!answer.ok) throw new Error(`openapi.json: ${answer.status}`);
  const described = await answer.json();
  document.getElementById("about").textContent = described.info.description;
  const tags = new Map();
  for (const [path, methods] of Object.entries(described.paths))
    for (const [method, about] of Object.entries(methods)) {
      const tag = about.tags?.[0] ?? "other";
      if (!tags.has(tag)) tags.set(tag, []);
      tags.get(tag).push(operation(path, method, about, described.components.schemas));
    }
  main.replaceChildren(...[...tags].flatMap(([tag, found]) => [element("h2", tag), ...found]));
}

show().catch((problem) => {
  document.getElementById("operations").textContent = `The description cannot be shown (${problem.message}).`;
});
