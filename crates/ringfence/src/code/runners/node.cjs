// In the box: runs code that came over descriptor 0, a socket, and sends back what came of it. Started by `node -e`.
// The code can write to the descriptor too, and then lies about nobody but itself.
// In a function of its own: names of the code and of this program must not meet.
(() => {
"use strict";
// Whatever the code makes of the names that it shares with this program.
const { Array, Atomics, Buffer, Error, Int32Array, JSON, Map, Math, Number, Object, Promise, process, RegExp, Set } = globalThis;
const { SharedArrayBuffer, String, SyntaxError, setImmediate } = globalThis;
const fs = require("fs");
const vm = require("vm");
const path = require("path");
const { createRequire } = require("module");
const { pathToFileURL } = require("url");

const FRAME = 4 << 20;
const TEXT = 64 << 10;
const channel = 0;
// A context has an end of its own for results, and files in the place of its output.
const [end, ...written] = process.argv.slice(1).map(Number);
const sender = end === undefined ? channel : end;
const write = fs.writeSync;
const read = fs.readSync;
const stringify = JSON.stringify;

let held = Buffer.alloc(0);
function fill() {
  const chunk = Buffer.allocUnsafe(1 << 16);
  for (;;) {
    try {
      const n = read(channel, chunk, 0, chunk.length, null);
      if (n === 0) return false;
      held = Buffer.concat([held, chunk.subarray(0, n)]);
      return true;
    } catch (error) {
      if (error.code !== "EAGAIN" && error.code !== "EINTR") return false;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

// The next request, or nothing when there will be none.
function receive() {
  let end;
  while ((end = held.indexOf(10)) < 0) if (!fill()) return undefined;
  const length = Number(held.subarray(0, end).toString());
  const parts = [held.subarray(end + 1)];
  let got = parts[0].length;
  held = Buffer.alloc(0);
  while (got < length) {
    if (!fill()) return undefined;
    parts.push(held);
    got += held.length;
    held = Buffer.alloc(0);
  }
  const all = Buffer.concat(parts);
  held = all.subarray(length);
  return JSON.parse(all.subarray(0, length).toString("utf8"));
}

function send(kind, payload) {
  const body = Buffer.isBuffer(payload) ? payload : Buffer.from(payload, "utf8");
  const data = Buffer.concat([Buffer.from(`${kind} ${body.length}\n`), body]);
  for (let at = 0; at < data.length; ) {
    try {
      at += write(sender, data, at);
    } catch (error) {
      if (error.code !== "EAGAIN" && error.code !== "EINTR") throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

const short = (text, limit = TEXT) => (text.length <= limit ? text : text.slice(0, limit) + "…");

function plain(value) {
  try {
    return short(require("util").inspect(value, { depth: 4, maxArrayLength: 100, maxStringLength: 10000 }));
  } catch {
    return `<${typeof value}>`;
  }
}

// JSON, or nothing where it would not come back as it is.
function encode(value) {
  if (typeof value === "bigint" || typeof value === "function" || typeof value === "symbol") return undefined;
  if (typeof value === "number" && !Number.isFinite(value)) return undefined;
  if (value instanceof Map || value instanceof Set || value instanceof RegExp || value instanceof Error) return undefined;
  try {
    return stringify(value);
  } catch {
    return undefined;
  }
}

// Frames of the code itself: its own file, and files beside it.
function frames(stack, name, lines) {
  const here = process.cwd() + "/";
  const trace = [];
  for (const line of String(stack).split("\n")) {
    const match = /^\s+at (?:(.*?) \()?(?:file:\/\/)?(.+?):(\d+):(\d+)\)?$/.exec(line);
    if (!match) continue;
    const own = match[2] === name;
    if (!own && !match[2].startsWith(here)) continue;
    const number = Number(match[3]);
    const entry = { file: own ? name : match[2].slice(here.length), line: number, column: Number(match[4]) };
    if (match[1] && match[1] !== "<anonymous>") entry.function = short(match[1], 200);
    if (own && lines[number - 1] !== undefined) entry.text = short(lines[number - 1].trim(), 200);
    trace.push(entry);
  }
  return trace.reverse().slice(-40);
}

function describe(error, name, code) {
  const lines = code.split("\n");
  if (!(error instanceof Error) && !(error && typeof error.stack === "string")) {
    return { type: "Thrown", message: short(plain(error), 8192), trace: [] };
  }
  const described = { type: String(error.name || "Error"), message: short(String(error.message), 8192) };
  system(error, described);
  described.trace = frames(error.stack, name, lines);
  // A syntax error has its place in the first line of the stack.
  const place = new RegExp(`^(?:file://)?${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}:(\\d+)`).exec(String(error.stack));
  if (described.trace.length === 0 && place) {
    const number = Number(place[1]);
    described.trace.push({ file: name, line: number, text: short((lines[number - 1] || "").trim(), 200) });
  }
  try {
    let last = described;
    for (const cause of causes(error)) {
      last = last.cause = { type: String(cause?.name ?? typeof cause), message: short(String(cause?.message ?? cause), 2048) };
      system(cause, last);
    }
  } catch {
    // What it is made of is the code's, and may fail in its own way.
  }
  return described;
}

// Adds the name of the system's error, and the host that it was about.
function system(error, described) {
  if (typeof error?.code === "string") described.errno = error.code;
  const host = error?.hostname ?? error?.address;
  if (typeof error?.syscall === "string" && typeof host === "string") described.host = short(host, 255);
}

// What is behind an error, the nearest first. What the system answered has nothing behind it.
function causes(error) {
  const found = [error];
  for (let at = 0; at < found.length && found.length < 9; at += 1) {
    const now = found[at];
    if (typeof now?.syscall === "string") continue;
    const near = now !== null && typeof now === "object" ? [now.cause, ...(Array.isArray(now.errors) ? now.errors.slice(0, 9) : [])] : [];
    for (const next of near) if (next !== undefined && !found.includes(next) && found.length < 9) found.push(next);
  }
  return found.slice(1);
}

// Whether the box has no network at all: then no name is ever found.
function isolated() {
  try {
    const names = fs.readFileSync("/proc/net/dev", "latin1").split("\n").filter((line) => line.includes(":"));
    return names.every((line) => line.split(":")[0].trim() === "lo");
  } catch {
    return false;
  }
}

function load(specifier) {
  const relative = /^\.{0,2}\//.test(specifier);
  return import(relative ? pathToFileURL(path.resolve(specifier)).href : specifier);
}

// As a script where it is one: then the value of its last expression comes by itself. Else as a module.
async function evaluate(request, name) {
  const { code } = request;
  const { waits, last, hoisted } = request.look;
  let script;
  try {
    if (!waits) script = new vm.Script(code, { filename: name, importModuleDynamically: load });
  } catch (error) {
    if (!(error instanceof SyntaxError) || !/import|export|await|meta/.test(String(error.message) + String(error.stack))) throw error;
  }
  if (!script) {
    const program = hoisted && rewritten(hoisted, name);
    return program ? inContext(program, hoisted, name) : asModule(code, last, name);
  }
  const value = await script.runInThisContext({ breakOnSigint: true });
  return value === undefined ? ownResult() : value;
}

const ownResult = () => vm.runInThisContext("typeof result === 'undefined' ? undefined : result");

// The function that the host made of code that waits or imports. Nothing where it cannot be one: a module then says why.
function rewritten({ code, shift }, name) {
  try {
    return new vm.Script(code, { filename: name, columnOffset: -shift, importModuleDynamically: load });
  } catch {
    return undefined;
  }
}

// Names that such code has declared: it may declare them again, as a cell of a notebook that is run again does.
const declared = new Set();

// What the code declares is the context's, as in a script.
async function inContext(program, { names }, name) {
  for (const [kind, one, line] of names) {
    if (kind === "let" && declared.has(one)) continue;
    vm.runInThisContext(`${kind} ${one};`, { filename: name, lineOffset: line - 1 });
    if (kind === "let") declared.add(one);
  }
  const own = {
    value: undefined,
    meta: { url: pathToFileURL(path.resolve(name)).href },
    define: (functions) => Object.assign(globalThis, functions),
    load: async (specifier, asked) => {
      const loaded = await load(specifier);
      const missing = asked.find((one) => !(one in loaded));
      if (missing !== undefined) throw new SyntaxError(`The requested module '${specifier}' does not provide an export named '${missing}'`);
      return loaded;
    },
  };
  const slot = "__ringfence_" + Math.random().toString(36).slice(2);
  globalThis[slot] = () => program.runInThisContext()(own);
  let value;
  try {
    value = vm.runInThisContext(`${slot}()`, { breakOnSigint: true });
  } finally {
    delete globalThis[slot];
  }
  return (await value) ?? own.value ?? ownResult();
}

async function asModule(code, last, name) {
  // Where the last expression stands was found by the host. What is put around it moves no line.
  const slot = "__ringfence_" + Math.random().toString(36).slice(2);
  const text = last ? `${code.slice(0, last[0])}globalThis.${slot}=(${code.slice(last[0], last[1])}\n)${code.slice(last[1])}` : code;
  let module;
  try {
    module = new vm.SourceTextModule(text, {
      identifier: name,
      importModuleDynamically: load,
      initializeImportMeta: (meta) => (meta.url = pathToFileURL(path.resolve(name)).href),
    });
  } catch (error) {
    if (last) throw await asModule(code, undefined, name).then(() => error);
    // A module does not say where. As a function it may fail for the same reason, and then does.
    try {
      new vm.Script(`(async () => {${code}\n})`, { filename: name });
    } catch (placed) {
      if (placed.message === error.message) throw placed;
    }
    throw error;
  }
  await module.link(async (specifier) => {
    const loaded = await load(specifier);
    const names = Object.keys(loaded);
    return new vm.SyntheticModule(names, function () {
      for (const key of names) this.setExport(key, loaded[key]);
    });
  });
  // With `breakOnSigint` an interrupt while it waits would end the process. So one during an endless loop has to wait.
  await module.evaluate();
  const value = await globalThis[slot];
  delete globalThis[slot];
  if (value !== undefined) return value;
  const exported = module.namespace;
  return "result" in exported ? exported.result : exported.default;
}

// Puts files where the code finds them. Whether all are there; one that is not is told.
function unpack(files) {
  for (const [name, data] of files) {
    const bytes = Buffer.from(data, "base64");
    // In a session it lies in the project: nothing there is replaced, but the same once more is no matter.
    const same = () => {
      const there = fs.lstatSync(name, { throwIfNoEntry: false });
      return there?.isFile() && there.size === bytes.length && fs.readFileSync(name).equals(bytes);
    };
    try {
      fs.mkdirSync(path.dirname(name), { recursive: true });
      fs.writeFileSync(name, bytes, { flag: "wx" });
    } catch (error) {
      const taken = error.code === "EEXIST" && error.syscall === "open";
      if (taken && same()) continue;
      send("u", `${name}: ${taken ? "a file of that name is there already, and nothing is replaced" : error.message}`);
      return false;
    }
  }
  return true;
}

// `*` and `?` within a name, `**` across directories.
function matcher(pattern) {
  const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&");
  const body = escaped.replace(/\*\*\/|\*\*|\*|\?/g, (m) => (m === "**/" ? "(?:.*/)?" : m === "**" ? ".*" : m === "*" ? "[^/]*" : "[^/]"));
  return new RegExp(`^${body}$`);
}

// Sends the files that were asked for. The host bounds them again.
function pack(patterns) {
  if (patterns.length === 0) return;
  const wanted = patterns.map(matcher);
  const dotted = patterns.some((pattern) => /(^|\/)\./.test(pattern));
  let [sent, left] = [0, 0];
  const visit = (folder, depth) => {
    for (const entry of fs.readdirSync(folder || ".", { withFileTypes: true })) {
      // As in a shell: what is hidden is asked for by its dot.
      if (entry.name.startsWith(".") && !dotted) continue;
      const name = folder ? `${folder}/${entry.name}` : entry.name;
      if (entry.isDirectory() && depth < 16) visit(name, depth + 1);
      else if (entry.isFile() && wanted.some((pattern) => pattern.test(name))) {
        if (sent === 256) {
          left += 1;
          continue;
        }
        const data = fs.readFileSync(name);
        const label = Buffer.from(name, "utf8");
        send("f", Buffer.concat([Buffer.from(`${label.length}\n`), label, data.subarray(0, (32 << 20) + 1)]));
        sent += 1;
      }
    }
  };
  visit("", 0);
  if (left) send("n", String(left));
}

// Milliseconds.
function cpu() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

async function execute(request) {
  const { name, inputs } = request;
  const reserved = new Set(["globalThis", "global", "process", "inputs", "require", "module", "exports"]);
  if (inputs && typeof inputs === "object" && !Array.isArray(inputs)) {
    for (const key of Object.keys(inputs)) {
      if (/^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(key) && !reserved.has(key) && !(key in Object.prototype)) globalThis[key] = inputs[key];
    }
  }
  globalThis.inputs = inputs;
  if (request.mark) fs.writeSync(sender, `\n${request.mark}\n`);
  // Before the start: that they cannot be there is no failure of the code.
  if (!unpack(request.files)) return;
  send("s", "");
  // An interrupt that was for the code before is not for this one.
  if (request.keep) await new Promise(setImmediate);
  const began = cpu();
  const message = { status: "ok" };
  let interrupt;
  const interrupted = new Promise((_, reject) => {
    interrupt = () => reject(Object.assign(new Error("interrupted"), { code: "ERR_SCRIPT_EXECUTION_INTERRUPTED" }));
    process.on("SIGINT", interrupt);
  });
  interrupted.catch(() => {});
  // Nothing is left that could ever wake the code up.
  const stuck = new Promise((_, reject) => process.once("beforeExit", () => reject(new Error("the code waits for something that never comes"))));
  stuck.catch(() => {});
  try {
    if (request.language === "typescript") request.code = require("module").stripTypeScriptTypes(request.code);
    const value = await Promise.race([evaluate(request, name), interrupted, uncaught, stuck]);
    process.removeAllListeners("beforeExit");
    const text = value === undefined ? undefined : encode(value);
    if (text !== undefined && text.length < FRAME) message.value = JSON.parse(text);
    else if (value !== undefined) {
      message.text = plain(value);
      // It could have been said, or is not shown whole.
      message.cut = text !== undefined || message.text.length > TEXT || /\.\.\. \d+ more (item|character)/.test(message.text);
    }
    // In a context, as long as it takes to see what nobody waited for.
    await (request.keep ? Promise.race([new Promise(setImmediate), uncaught, interrupted]) : idle());
    if (process.exitCode) {
      message.status = "error";
      message.exception = { type: "ExitStatus", message: `exit status ${process.exitCode}`, trace: [] };
      process.exitCode = undefined;
    }
  } catch (error) {
    message.status = error?.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED" ? "cancelled" : "error";
    message.exception = describe(error, name, request.code);
    message.isolated = isolated();
  } finally {
    process.removeAllListeners("beforeExit");
    process.off("SIGINT", interrupt);
  }
  pack(request.out);
  output();
  if (request.mark) send("t", `${Math.round(cpu() - began)} ${process.resourceUsage().maxRSS * 1024}`);
  // Half of a pair is no Unicode, and the host would not read any of it.
  send("r", stringify(message).replace(/\\\\|\\ud[89a-f][0-9a-f]{2}/g, (m) => (m === "\\\\" ? m : "\\ufffd")));
}

// A stream that cannot write, or is interrupted while it does, never writes again. So these keep nothing in mind: what there
// is no room for is counted.
const lost = written.map((_, index) => {
  const count = { bytes: 0 };
  (index === 0 ? process.stdout : process.stderr).write = (chunk, encoding, done) => {
    if (typeof encoding === "function") [encoding, done] = [undefined, encoding];
    const bytes = typeof chunk === "string" ? Buffer.from(chunk, encoding) : chunk;
    for (let at = 0; at < bytes.length; ) {
      try {
        at += write(index + 1, bytes, at);
      } catch (error) {
        if (String(error.code).startsWith("ERR_")) throw error;
        if (error.code === "EAGAIN" || error.code === "EINTR") continue;
        count.bytes += bytes.length - at;
        break;
      }
    }
    if (typeof done === "function") process.nextTick(done);
    return true;
  };
  return count;
});

// What was written since the last time, head and tail; the files are empty afterwards.
function output() {
  const half = 1 << 19;
  written.forEach((file, index) => {
    const size = fs.fstatSync(file).size;
    if (size === 0) return;
    const part = (from, most) => {
      const data = Buffer.alloc(Math.max(0, Math.min(most, size - from)));
      return data.subarray(0, fs.readSync(file, data, 0, data.length, from));
    };
    const head = part(0, half);
    const tail = part(Math.max(size - half, head.length), half);
    const dropped = size - head.length - tail.length + lost[index].bytes;
    lost[index].bytes = 0;
    const between = dropped ? `\n[${dropped} bytes dropped]\n` : "";
    send(index === 0 ? "o" : "e", Buffer.concat([Buffer.from(`${dropped}\n`), head, Buffer.from(between), tail]));
    fs.ftruncateSync(file, 0);
  });
}

// Waits for what the code has started: timers, requests.
function idle() {
  return Promise.race([new Promise((resolve) => process.once("beforeExit", resolve)), uncaught]);
}

let uncaught;
function expect() {
  uncaught = new Promise((_, reject) => {
    process.removeAllListeners("uncaughtException");
    process.on("uncaughtException", (error) => reject(error));
  });
  uncaught.catch(() => {});
}

async function serve() {
  let first = receive();
  if (first?.warm) {
    send("w", "");
    first = receive();
  }
  if (!first) return;
  if (first.language === "typescript" && !require("module").stripTypeScriptTypes) {
    fs.writeSync(end === undefined ? 2 : sender, "TypeScript needs Node 22.13 or newer\n");
    process.exit(3);
  }
  const here = path.resolve(first.name);
  const Module = require("module");
  const main = Object.assign(new Module(here), { filename: here, paths: Module._nodeModulePaths(process.cwd()) });
  // What it loads asks by this whether it is the program itself.
  process.mainModule = main;
  main.require = createRequire(here);
  Object.assign(globalThis, { require: main.require, module: main, exports: main.exports, __filename: here, __dirname: process.cwd() });
  process.argv = [process.execPath, here];
  // An interrupt between two executions is for nobody.
  if (first.keep) process.on("SIGINT", () => {});
  for (let request = first; request; request = receive()) {
    expect();
    await execute(request);
    if (!request.keep) return;
  }
}

serve().then(
  () => process.exit(0),
  (error) => {
    process.stderr.write(`${error?.stack}\n`);
    process.exit(70);
  },
);
})();
