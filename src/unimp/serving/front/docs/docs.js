// Shows openapi.json. All text is added as text nodes.

function element(name, options = {}, ...children) {
  const made = Object.assign(document.createElement(name), options);
  made.append(...children);
  return made;
}

function short(schema, all, depth = 0) {
  if (!schema) return "";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    const found = all[name];
    return depth > 1 || !found ? name : short(found, all, depth);
  }
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return several.map((one) => short(one, all, depth)).join(" | ");
  if (schema.type === "array") return `[${short(schema.items, all, depth)}]`;
  if (schema.properties || schema.allOf) {
    const pad = "  ".repeat(depth + 1);
    const lines = Object.entries(schema.properties ?? {}).map(
      ([name, one]) => `${pad}${name}: ${short(one, all, depth + 1)}`,
    );
    return `{\n${lines.join("\n")}\n${"  ".repeat(depth)}}`;
  }
  return schema.type ?? "any";
}

function route(method, path, about, all) {
  const parts = [];
  const words = about.description ?? about.summary ?? "";
  const [first, ...rest] = words.split("\n\n");
  for (const paragraph of rest) parts.push(element("p", {}, paragraph));
  if (about.parameters?.length) {
    const rows = about.parameters.map((one) =>
      element(
        "tr",
        {},
        element("td", {}, element("code", {}, one.name)),
        element("td", {}, `${one.in}${one.required ? ", required" : ""}`),
        element("td", {}, one.description ?? short(one.schema, all, 1)),
      ),
    );
    parts.push(element("table", {}, ...rows));
  }
  const bodies = Object.entries(about.requestBody?.content ?? {});
  for (const [type, body] of bodies) {
    parts.push(element("p", {}, `Body, ${type}:`), element("pre", {}, short(body.schema, all)));
  }
  const answer = about.responses?.["200"]?.content?.["application/json"]?.schema;
  if (answer) parts.push(element("p", {}, "Answer:"), element("pre", {}, short(answer, all)));
  const title = element(
    "summary",
    {},
    element("span", { className: "method" }, method.toUpperCase()),
    element("code", {}, path),
    element("span", { className: "words" }, first),
  );
  return element("details", {}, title, ...parts);
}

const about = document.getElementById("about");
try {
  const found = await (await fetch("openapi.json")).json();
  const groups = new Map();
  for (const [path, methods] of Object.entries(found.paths)) {
    for (const [method, one] of Object.entries(methods)) {
      const tag = one.tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(route(method, path, one, found.components.schemas));
    }
  }
  const routes = document.getElementById("routes");
  for (const [tag, list] of groups) routes.append(element("h2", {}, tag), ...list);
  about.replaceChildren(
    found.info.description ?? "",
    " The machine-readable form is ",
    element("a", { href: "openapi.json" }, "openapi.json"),
    ".",
  );
} catch (error) {
  about.textContent = `openapi.json could not be read: ${error}`;
}
