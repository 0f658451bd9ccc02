//! bash: words are put together as the shell would, then each command is looked at with its arguments, and what flows
//! through pipes.

mod calls;
mod commands;
mod network;
mod programs;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use tree_sitter::{Node, Tree};

use self::calls::Calls;
use self::commands::Command;
pub use self::programs::{base_name, fetches, runs_other};
use super::decode::{is_opaque, is_spelled_out, unescape};
use super::places::{self, Act};
use super::rules::*;
use super::value::{Taint, Value};
use super::walk::{Kid, Place, Reader, first_error, parse, walk};
use super::{Findings, Language};

/// Once for what variables hold, once for what functions get of them, once for findings.
const ROUNDS: usize = 3;
/// Variables that make programs load code, or hide what was done.
const HOOKS: &[(&str, &Rule)] = &[
    ("LD_PRELOAD", &ENV_HOOK),
    ("LD_AUDIT", &ENV_HOOK),
    ("LD_LIBRARY_PATH", &ENV_HOOK),
    ("BASH_ENV", &ENV_HOOK),
    ("PROMPT_COMMAND", &ENV_HOOK),
    ("PYTHONSTARTUP", &ENV_HOOK),
    ("NODE_OPTIONS", &ENV_HOOK),
    ("GIT_SSH_COMMAND", &ENV_HOOK),
    ("HISTFILE", &TRACES),
    ("HISTSIZE", &TRACES),
    ("HISTFILESIZE", &TRACES),
];

pub fn read(text: &str, findings: &mut Findings<'_>) {
    let Some(tree) = parse(Language::Bash, text, findings) else {
        findings.add(&LIMIT, 0, "");
        return;
    };
    if !read_tree(text, &tree, findings) || !tree.root_node().has_error() {
        return;
    }
    // The grammar does not know a `~` at the end of a test, as in `[ -d ~ ]`. With another word there it is read once
    // more, and what was found before stays.
    let other = text.replace(" ~ ]", " . ]");
    if other != text
        && let Some(tree) = parse(Language::Bash, &other, findings)
        && !tree.root_node().has_error()
    {
        read_tree(&other, &tree, findings);
    } else if !findings.is_embedded() {
        findings.add(&SYNTAX, first_error(&tree), "");
    }
}

/// Whether there was time for all of it.
fn read_tree(text: &str, tree: &Tree, findings: &mut Findings<'_>) -> bool {
    let mut reader = Bash {
        text,
        findings,
        reports: false,
        variables: HashMap::new(),
        downloads: HashSet::new(),
        functions: Vec::new(),
        defined: HashSet::new(),
        calls: Calls::default(),
        reads: Vec::new(),
        here: None,
    };
    for round in 1..=ROUNDS {
        reader.reports = round == ROUNDS;
        reader.functions.clear();
        reader.reads.clear();
        reader.here = None;
        if !walk(tree, &mut reader) && round == ROUNDS {
            findings.add(&LIMIT, 0, "");
            return false;
        }
    }
    true
}

struct Bash<'f, 's, 'x> {
    text: &'x str,
    findings: &'f mut Findings<'s>,
    reports: bool,
    variables: HashMap<String, Value>,
    /// Files that came over the network, or were decoded.
    downloads: HashSet<String>,
    /// Functions that we are in.
    functions: Vec<String>,
    defined: HashSet<String>,
    calls: Calls,
    /// Variables that `read` fills, and where.
    reads: Vec<(usize, Vec<String>)>,
    /// The directory that was gone to last.
    here: Option<String>,
}

impl<'t> Bash<'_, '_, '_> {
    fn source(&self, node: Node<'t>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    fn found(&mut self, rule: &'static Rule, at: usize, detail: &str) {
        if self.reports {
            self.findings.add(rule, at, &detail.replace('\u{0}', "…"));
        }
    }

    /// The function that we are in.
    fn function(&self) -> &str {
        self.functions.last().map_or("", String::as_str)
    }

    /// What flows into a loop or a group is what `read` reads there.
    fn feed(&mut self, node: Node<'t>, taint: Taint) {
        if taint == Taint::default() {
            return;
        }
        let inside = self.reads.iter().filter(|(at, _)| node.byte_range().contains(at));
        for name in inside.flat_map(|(_, names)| names) {
            self.variables.entry(name.clone()).or_default().merge(&Value::tainted(taint));
        }
    }

    fn variable(&mut self, name: &str, at: usize) -> Value {
        if let Some(value) = name.parse().ok().and_then(|number| self.calls.parameter(self.function(), number)) {
            return value;
        }
        match name {
            "HOME" => return Value::text("~"),
            "IFS" => return Value::text(" "),
            "PWD" | "OLDPWD" => return Value::text("."),
            "TMPDIR" => return Value::text("/tmp"),
            "@" | "*" => return Value::text(""),
            _ => {}
        }
        if let Some(value) = self.variables.get(name) {
            return value.clone();
        }
        let upper = name.to_ascii_uppercase();
        let secret =
            ["SECRET", "TOKEN", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "PRIVATE_KEY", "ACCESS_KEY", "CREDENTIAL"];
        if secret.iter().any(|word| upper.contains(word)) && upper == name {
            self.found(&ENV_SECRET, at, name);
        }
        Value::default()
    }

    fn assign(&mut self, node: Node<'t>, kids: &[Kid<'t>]) {
        let Some(name) = kids.iter().find(|kid| kid.field == Some("name")).map(|kid| self.source(kid.node).to_owned())
        else {
            return;
        };
        let value = kids
            .iter()
            .find(|kid| kid.field == Some("value"))
            .map(|kid| kid.value.clone())
            .unwrap_or_else(|| Value::text(""));
        let known = HOOKS.iter().find(|(hook, _)| *hook == name);
        if let Some((_, rule)) = known {
            let hides =
                rule.id != TRACES.id || value.first_text().is_some_and(|text| ["/dev/null", "0", ""].contains(&text));
            if hides {
                self.found(rule, node.start_byte(), &name);
            }
        }
        self.variables.entry(name).or_default().merge(&value);
    }

    /// A redirection of a statement to or from a file: what flows in.
    fn redirect(&mut self, node: Node<'t>, target: &Value, flowing: &Value, programs: &[Rc<str>]) -> Taint {
        let at = node.start_byte();
        let written = self.source(node).trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
        let reads = written.starts_with('<') && !written.starts_with("<>") && !written.starts_with("<&");
        let mut taint = if reads { target.taint } else { Taint::default() };
        for text in target.texts.clone() {
            let socket = text.strip_prefix("/dev/tcp/").or(text.strip_prefix("/dev/udp/"));
            if let Some(rest) = socket {
                let host = rest.split('/').next().unwrap_or_default();
                let shell = programs.iter().any(|program| programs::is_shell(program) || &**program == "exec");
                let rule = places::address(host, self.findings.declared);
                if shell {
                    self.found(&REMOTE_SHELL, at, &text);
                } else if let Some(rule) = rule {
                    self.found(rule, at, &text);
                    if flowing.taint.has(Taint::GATHERED) {
                        self.found(&EXFILTRATION, at, &text);
                    }
                }
                taint = taint.with(Taint::REMOTE);
                continue;
            }
            let act = if reads { Act::Read } else { Act::Write };
            if let Some(rule) = places::path(&text, act, self.findings.declared) {
                self.found(rule, at, &text);
                if reads {
                    taint = taint.with(Taint::GATHERED);
                }
            }
            if !reads && (flowing.taint.has(Taint::REMOTE) || flowing.taint.has(Taint::DECODED)) {
                self.downloads.insert(base_name(&text).to_owned());
            }
        }
        taint
    }

    fn command(&mut self, node: Node<'t>, kids: &[Kid<'t>], input: &Value) -> Value {
        // `"$@"` is what the function or the script was called with, each time.
        let all = |kid: &Kid<'t>| {
            let written = self.source(kid.node).trim_matches('"').replace(['{', '}'], "");
            matches!(kid.field, Some("name" | "argument")) && (written == "$@" || written == "$*")
        };
        if let Some(place) = kids.iter().position(all) {
            let word = |kid: &&Kid<'t>| matches!(kid.field, Some("name" | "argument"));
            let of = |kids: &[Kid<'t>]| kids.iter().filter(word).map(|kid| kid.value.clone()).collect::<Vec<_>>();
            let (before, after) = (of(&kids[..place]), of(&kids[place + 1..]));
            for call in self.calls.of(self.function()).to_vec() {
                let words = [&before[..], &call, &after].concat();
                commands::look(self, &Command { words: &words, at: node.start_byte(), input });
            }
        }
        let mut words: Vec<Value> = Vec::new();
        for kid in kids {
            let is_word = matches!(kid.field, Some("name" | "argument"));
            if !is_word {
                continue;
            }
            // `cat${IFS}/etc/passwd` is two words.
            match kid.value.whole_text() {
                Some(text)
                    if text.contains(char::is_whitespace) && self.source(kid.node).starts_with('$')
                        || text.contains(' ') && self.source(kid.node).contains("IFS") =>
                {
                    words.extend(text.split_whitespace().map(|word| Value::text(word).with(kid.value.taint)));
                }
                _ => words.push(kid.value.clone()),
            }
        }
        let mut input = input.clone();
        let mut fed = false;
        let programs: Vec<Rc<str>> =
            words.first().and_then(Value::first_text).map(|text| base_name(text).into()).into_iter().collect();
        for kid in kids {
            match kid.node.kind() {
                "herestring_redirect" => {
                    input = kid.value.clone();
                    fed = true;
                }
                "file_redirect" => {
                    let taint = self.redirect(kid.node, &kid.value, &Value::default(), &programs);
                    input.taint = input.taint.with(taint);
                }
                _ => {}
            }
        }
        let whole = self.source(node).to_owned();
        if is_opaque(&whole) {
            self.found(&OPAQUE, node.start_byte(), "");
        }
        if is_spelled_out(&whole) {
            self.found(&ESCAPES, node.start_byte(), "");
        }
        let command = Command { words: &words, at: node.start_byte(), input: &input };
        let mut output = commands::look(self, &command);
        if fed {
            output = commands::receive(self, &command);
        }
        output.names = programs;
        output.items = Some(words.into());
        output
    }
}

/// What a pipe carries from one part to the next is looked at with the whole pipe.
fn carries(kind: &str) -> bool {
    matches!(
        kind,
        "command"
            | "redirected_statement"
            | "pipeline"
            | "subshell"
            | "compound_statement"
            | "list"
            | "negated_command"
    )
}

impl<'t> Reader<'t> for Bash<'_, '_, '_> {
    fn enter(&mut self, node: Node<'t>) {
        if node.kind() == "function_definition"
            && let Some(name) = node.child_by_field_name("name")
        {
            let name = self.source(name).to_owned();
            self.defined.insert(name.clone());
            self.functions.push(name);
        }
    }

    fn exit(&mut self, node: Node<'t>, place: Place<'t>, kids: Vec<Kid<'t>>) -> Value {
        let at = node.start_byte();
        let last = |kids: &[Kid<'t>]| {
            kids.iter().rfind(|kid| carries(kid.node.kind())).map(|kid| kid.value.clone()).unwrap_or_default()
        };
        match node.kind() {
            "word" | "number" | "special_character" | "regex" | "extglob_pattern" => {
                Value::text(self.source(node).replace("\\\n", "").replace('\\', ""))
            }
            "raw_string" => Value::text(self.source(node).trim_matches('\'')),
            "ansi_c_string" => {
                let inner = self.source(node).trim_start_matches("$'").trim_end_matches('\'');
                Value::text(unescape(inner)).with(if inner.contains("\\x") || inner.contains("\\1") {
                    Taint::DECODED
                } else {
                    Taint::default()
                })
            }
            "string_content" | "heredoc_content" => {
                let text = self.source(node).replace("\\\"", "\"").replace("\\$", "$").replace("\\\\", "\\");
                Value::text(text)
            }
            "variable_name" | "special_variable_name" => Value::default(),
            "string" | "concatenation" | "command_name" | "translated_string" | "heredoc_body" => {
                // The grammar leaves out blanks between two parts of a string.
                if kids.is_empty() {
                    let text = self.source(node).trim_matches('"').to_owned();
                    return Value::text(text);
                }
                let mut sum = Value::text("");
                let mut end = kids.first().map_or(at, |kid| kid.node.start_byte());
                for kid in &kids {
                    let between = self.text.get(end..kid.node.start_byte()).unwrap_or_default();
                    sum = sum.concat(&Value::text(between)).concat(&kid.value);
                    end = kid.node.end_byte();
                }
                sum
            }
            "simple_expansion" => match kids.first() {
                Some(kid) => {
                    let name = self.source(kid.node).to_owned();
                    self.variable(&name, at)
                }
                None => Value::default(),
            },
            "expansion" => {
                let mut sum = Value::default();
                for kid in &kids {
                    match kid.node.kind() {
                        "variable_name" | "special_variable_name" => {
                            let name = self.source(kid.node).to_owned();
                            let value = self.variable(&name, at);
                            sum.merge(&value);
                        }
                        _ => sum.merge(&kid.value),
                    }
                }
                // `${x//a/b}`, `${x:2:3}`, `${x^^}`: it is something else then.
                let plain = self.source(node);
                let changed = plain.contains("//")
                    || plain.contains('/') && !plain.contains(":-")
                    || plain.contains("^^")
                    || plain.ends_with(",}")
                    || plain.contains('@') && !plain.contains("[@]");
                if changed || plain.contains("!") { Value::tainted(sum.taint.with(Taint::DECODED)) } else { sum }
            }
            "command_substitution"
            | "process_substitution"
            | "subshell"
            | "compound_statement"
            | "list"
            | "program"
            | "do_group"
            | "negated_command" => {
                let mut of = last(&kids);
                // `$(<file)`.
                for kid in kids.iter().filter(|kid| kid.node.kind() == "file_redirect") {
                    of.taint = of.taint.with(self.redirect(kid.node, &kid.value, &Value::default(), &[]));
                }
                if node.kind() == "subshell" {
                    self.here = None;
                }
                let single = kids.iter().filter(|kid| carries(kid.node.kind())).count() == 1;
                let group = single && matches!(node.kind(), "subshell" | "compound_statement");
                let names = if node.kind() == "command_substitution" { Vec::new() } else { of.names };
                Value { texts: of.texts, taint: of.taint, names, items: of.items.filter(|_| group), ..Value::default() }
            }
            "variable_assignment" => {
                self.assign(node, &kids);
                Value::default()
            }
            "declaration_command" => {
                let written = self.source(node);
                if ["export -p", "declare -x", "declare -p", "typeset -x", "export", "declare"].contains(&written) {
                    self.found(&ENV_ALL, at, "");
                    return Value::tainted(Taint::GATHERED);
                }
                Value::default()
            }
            "unset_command" => {
                let traces = |word: &str| HOOKS.iter().any(|(name, rule)| *name == word && rule.id == TRACES.id);
                if self.source(node).split_whitespace().any(|word| traces(word.trim_matches(['"', '\'']))) {
                    self.found(&TRACES, at, "");
                }
                Value::default()
            }
            "herestring_redirect" => kids.into_iter().next_back().map(|kid| kid.value).unwrap_or_default(),
            "file_redirect" => {
                kids.into_iter().find(|kid| kid.field == Some("destination")).map(|kid| kid.value).unwrap_or_default()
            }
            "heredoc_redirect" => {
                let body = kids.iter().find(|kid| kid.node.kind() == "heredoc_body").map(|kid| kid.value.clone());
                body.unwrap_or_default()
            }
            "command" => {
                // In a pipe, and with a redirection, it is looked at again with what flows into it.
                self.command(node, &kids, &Value::default())
            }
            "redirected_statement" => {
                let body = kids.iter().find(|kid| carries(kid.node.kind()));
                let mut flowing = body.map(|kid| kid.value.clone()).unwrap_or_default();
                for kid in kids.iter().filter(|kid| kid.node.kind().ends_with("_redirect")) {
                    match kid.node.kind() {
                        "file_redirect" => {
                            let names = flowing.names.clone();
                            let taint = self.redirect(kid.node, &kid.value, &flowing, &names);
                            self.feed(node, taint);
                            if let (true, Some(words)) =
                                (taint != Taint::default() || kid.value.taint != Taint::default(), &flowing.items)
                            {
                                let command = Command { words, at, input: &Value::tainted(taint) };
                                commands::receive(self, &command);
                            }
                            flowing.taint = flowing.taint.with(taint);
                        }
                        _ => {
                            let words = flowing.items.clone();
                            if let Some(words) = words {
                                let command = Command { words: &words, at, input: &kid.value };
                                let output = commands::receive(self, &command);
                                flowing.taint = flowing.taint.with(output.taint);
                                flowing.texts = output.texts;
                            }
                        }
                    }
                }
                flowing
            }
            "pipeline" => {
                let parts: Vec<&Kid<'t>> = kids.iter().filter(|kid| carries(kid.node.kind())).collect();
                if let (Some(function), true) = (self.functions.last().cloned(), parts.len() > 1)
                    && parts.iter().all(|part| part.value.names.first().is_some_and(|name| **name == *function))
                {
                    self.found(&BOMB, at, "");
                }
                // A shell that reads its commands from somewhere else and answers to a connection.
                let bare = |value: &Value| value.items.as_deref().is_some_and(commands::is_bare_shell);
                let mut after = parts.iter().skip_while(|part| !bare(&part.value)).flat_map(|part| &part.value.names);
                if after.any(|name| ["nc", "ncat", "netcat", "telnet", "socat", "openssl"].contains(&&**name)) {
                    self.found(&REMOTE_SHELL, at, "");
                }
                let mut flowing = parts.first().map(|part| part.value.clone()).unwrap_or_default();
                self.feed(node, flowing.taint);
                for part in parts.iter().skip(1) {
                    let output = match &part.value.items {
                        Some(words) => {
                            let command = Command { words, at: part.node.start_byte(), input: &flowing };
                            commands::receive(self, &command)
                        }
                        None => Value::tainted(flowing.taint.with(part.value.taint)),
                    };
                    // The grammar puts `a | sh 2>&1 | b` together as a pipe into `b`.
                    let items = part.value.items.clone().filter(|_| bare(&part.value));
                    flowing = Value { names: part.value.names.clone(), items, ..output };
                }
                flowing
            }
            "for_statement" => {
                let mut sum = Value::default();
                kids.iter().filter(|kid| kid.field == Some("value")).for_each(|kid| sum.merge(&kid.value));
                if let Some(name) = kids.iter().find(|kid| kid.field == Some("variable")) {
                    let name = self.source(name.node).to_owned();
                    self.variables.entry(name).or_default().merge(&sum);
                }
                Value::default()
            }
            "function_definition" => {
                let body = kids.iter().find(|kid| kid.field == Some("body"));
                if let (Some(function), Some(body)) = (self.functions.pop(), body) {
                    self.calls.returns(&function, body.value.taint);
                }
                Value::default()
            }
            "test_operator" | "comment" | "heredoc_start" | "heredoc_end" | "file_descriptor" => Value::default(),
            _ => {
                let _ = place;
                let mut sum = Value::default();
                for kid in kids.iter().take(64) {
                    sum.taint = sum.taint.with(kid.value.taint);
                }
                sum
            }
        }
    }

    fn stop(&self) -> bool {
        if self.reports { self.findings.out_of_time() } else { self.findings.knows_enough() }
    }
}
