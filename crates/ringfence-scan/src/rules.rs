//! The rules, as data. What each is looked for with stands in the tables of `apis`, `places`, `bash` and `unicode`.

use super::Severity::{self, High, Low, Medium};

/// One rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    pub id: &'static str,
    pub severity: Severity,
    /// What the code does.
    pub what: &'static str,
    /// Why somebody should look.
    pub why: &'static str,
}

macro_rules! rules {
    ($($name:ident = $id:literal, $severity:ident, $what:literal, $why:literal;)*) => {
        $(pub static $name: Rule = Rule { id: $id, severity: $severity, what: $what, why: $why };)*
        /// All of them.
        pub static RULES: &[&Rule] = &[$(&$name),*];
    };
}

rules! {
    // Processes.
    SPAWN = "process.spawn", Medium, "starts another program", "what that program does is not in this code";
    SHELL = "process.shell", Medium, "hands text to a shell", "whatever gets into the text is executed";
    PROCESS = "process.control", Medium, "forks, signals or replaces processes", "few skills need it";
    REMOTE_SHELL = "process.remote-shell", High, "ties a shell to a connection or a terminal", "it is how a machine is taken over";
    BOMB = "process.bomb", High, "starts processes without end", "it takes the machine down";
    PRIVILEGE = "process.privilege", Medium, "asks for more rights", "a skill needs none";
    // Network.
    CONNECT = "net.connect", Medium, "reaches a host that was not declared", "data can leave, and code can come in";
    LISTEN = "net.listen", Medium, "waits for connections", "others can reach in";
    METADATA = "net.metadata", High, "asks the metadata service of a cloud", "it gives out credentials of the machine";
    DROP = "net.drop", High, "reaches a place for anonymous drops, tunnels or mining", "stolen data and payloads are kept there";
    // Code that is not in the source.
    DYNAMIC = "code.dynamic", Medium, "runs text as code", "the text can be anything";
    DECODED = "code.decoded", High, "runs what it decoded before", "the code was hidden from readers";
    REMOTE_CODE = "code.remote", High, "runs what it fetched or received", "somebody else decides what runs";
    IMPORT = "code.import", Medium, "loads a module whose name is computed", "which one it is cannot be read";
    REFLECTION = "code.reflection", Medium, "looks functions up by a computed name", "which one it is cannot be read";
    ESCAPE = "code.escape", High, "climbs from an object to the interpreter's internals", "it is how restricted interpreters are left";
    PATCH = "code.patch", Medium, "changes the interpreter or other modules while it runs", "what a name means is no longer what it says";
    INSTALL = "code.install", Medium, "installs packages", "their code is not in this code";
    // Data that is code.
    DESERIALISE = "data.deserialise", Medium, "reads a format that can carry code", "a crafted file runs what it likes";
    DESERIALISE_FOREIGN = "data.deserialise-foreign", High, "reads fetched or decoded data in a format that can carry code", "whoever made the data decides what runs";
    // Native code.
    NATIVE = "native.load", Medium, "calls native code", "it is not bound by the language";
    NATIVE_MEMORY = "native.memory", High, "makes memory executable or runs a file that exists in memory only", "it is how injected machine code is run";
    // Environment and credentials.
    ENV = "env.read", Low, "reads an environment variable", "settings can come in this way";
    ENV_SECRET = "env.secret", Medium, "reads an environment variable that sounds secret", "see where it goes";
    ENV_ALL = "env.all", Medium, "reads the whole environment", "there may be secrets in it";
    ENV_HOOK = "env.hook", High, "sets a variable that makes other programs load code", "the next program runs it";
    CREDENTIAL = "credential.read", High, "reads credentials", "no skill needs those of the user";
    CREDENTIAL_PATH = "credential.path", Medium, "names a place where credentials are kept", "see what is done with it";
    EXFILTRATION = "flow.exfiltration", High, "sends what it gathered from the machine", "it is how secrets are stolen";
    SPY = "flow.spy", High, "watches keyboard, screen or clipboard", "it sees what the user types and reads";
    // Files.
    OUTSIDE = "file.outside", Medium, "uses a file outside its workspace", "it is the machine's or the user's";
    SYSTEM = "file.system", High, "changes files of the system", "nothing there belongs to a skill";
    HOST = "file.host", High, "uses a way around walls (daemon socket, memory or root of another process, disk)", "it is how containers are left";
    DESTROY = "file.destroy", High, "removes or overwrites far more than its own files", "nothing brings them back";
    COMPUTED = "file.computed", Medium, "removes what another program names", "which files those are cannot be read";
    PERSIST = "file.persist", High, "writes what is executed later by itself", "it outlives the run";
    // Hiding.
    OPAQUE = "hide.opaque", Medium, "holds a large opaque string", "it may be code or data that nobody can read";
    ESCAPES = "hide.escapes", Medium, "spells plain text in escapes", "there is no honest reason to";
    PIECES = "hide.pieces", High, "spells the name of a function or module in pieces", "there is no honest reason to";
    NAMES = "hide.names", Medium, "has names made by an obfuscator", "it was made unreadable on purpose";
    TRACES = "hide.traces", High, "removes traces or switches protection off", "an honest program has nothing to hide";
    BIDI = "unicode.bidi", High, "has characters that reorder text", "the code reads differently from what runs";
    INVISIBLE = "unicode.invisible", Medium, "has invisible characters", "something may be hidden in it";
    HIDDEN_NAME = "unicode.hidden-name", High, "has invisible characters in a name, or text in invisible characters", "something is hidden in it";
    LOOKALIKE = "unicode.lookalike", High, "has a name with letters that look like others", "it is not the name that it seems to be";
    // Secrets.
    SECRET = "secret.literal", Medium, "has a secret written into it", "whoever reads the code has it";
    // The scanner's own limits.
    SYNTAX = "scan.syntax", Medium, "cannot be read as code of its language", "what was not understood was not looked at";
    NOT_TEXT = "scan.not-text", Medium, "is not text", "it cannot be read";
    FAILED = "scan.failed", High, "ended what reads it", "it may have been written to do that";
    LIMIT = "scan.limit", Medium, "is too large or too involved to be read in full", "the rest was not looked at";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct() {
        let ids: std::collections::HashSet<&str> = RULES.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), RULES.len());
    }
}
