//! `ringfence install`, through the program, on files as their owners have them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use support::{Place, names, program};

const CLIENTS: [(&str, &str, &str); 5] = [
    ("claude", ".claude.json", ".mcp.json"),
    ("codex", ".codex/config.toml", ".codex/config.toml"),
    ("cursor", ".cursor/mcp.json", ".cursor/mcp.json"),
    ("vscode", ".config/Code/User/mcp.json", ".vscode/mcp.json"),
    ("gemini", ".gemini/settings.json", ".gemini/settings.json"),
];

#[test]
fn every_client_in_both_scopes() {
    for (client, user, project) in CLIENTS {
        let place = Place::new();
        for (scope, path) in [("user", place.home.join(user)), ("project", place.project.join(project))] {
            let done = place.ringfence(&["install", client, "--scope", scope, "--yes"]);
            assert_eq!((done.code, done.out.as_str()), (0, ""), "{}", done.err);
            assert!(done.err.contains("+++ ") && done.err.contains("next start"), "{}", done.err);
            let text = fs::read_to_string(&path).unwrap();
            let command = if scope == "user" { program() } else { "ringfence" };
            assert!(text.contains(&format!("\"{command}\"")) && text.contains("\"mcp\""), "{client} {scope}: {text}");
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, if scope == "user" { 0o600 } else { 0o644 });

            let again = place.ringfence(&["install", client, "--scope", scope]);
            assert!(again.code == 0 && again.err.contains("already"), "{}", again.err);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(path.parent().unwrap()).iter().filter(|name| name.contains("ringfence-")).count(), 0);

            let gone = place.ringfence(&["install", client, "--scope", scope, "--remove", "--yes"]);
            assert_eq!(gone.code, 0, "{}", gone.err);
            assert!(!fs::read_to_string(&path).unwrap().contains("mcp\""));
            let again = place.ringfence(&["install", client, "--scope", scope, "--remove"]);
            assert!(again.code == 0 && again.err.contains("is not in"), "{}", again.err);
        }
    }
}

#[test]
fn the_rest_of_the_file_stays() {
    let place = Place::new();
    let before = "{\n  \"numStartups\": 7,\n  \"projects\": {\n    \"/a\": { \"history\": [] }\n  },\n  \"mcpServers\": {\n    \"docs\": {\n      \"type\": \"stdio\",\n      \"command\": \"npx\"\n    }\n  },\n  \"userID\": \"0c\"\n}\n";
    place.write(".claude.json", before);
    let path = place.home.join(".claude.json");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!(place.ringfence(&["install", "claude", "--yes"]).code, 0);
    let entry = format!(
        ",\n    \"ringfence\": {{\n      \"type\": \"stdio\",\n      \"command\": \"{}\",\n      \"args\": [\"mcp\"]\n    }}",
        program()
    );
    let after = before.replace("\"npx\"\n    }", &format!("\"npx\"\n    }}{entry}"));
    assert_eq!(fs::read_to_string(&path).unwrap(), after);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(place.ringfence(&["install", "claude", "--remove", "--yes"]).code, 0);
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
}

#[test]
fn nothing_is_written_unasked() {
    let place = Place::new();
    place.write(".cursor/mcp.json", "{}\n");
    let path = place.home.join(".cursor/mcp.json");
    let dry = place.ringfence(&["install", "cursor", "--dry-run"]);
    assert!(dry.code == 0 && dry.out.contains("+  \"mcpServers\": {"), "{dry:?}");
    let asked = place.ringfence(&["install", "cursor"]);
    assert!(asked.code == 125 && asked.err.contains("not a terminal") && asked.err.contains("--yes"), "{}", asked.err);
    assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n");
    place.write(".cursor/mcp.json", "{\n  \"mcpServers\": {\n    \"a\": }\n}\n");
    let broken = place.ringfence(&["install", "cursor", "--yes"]);
    assert!(broken.code == 125 && broken.err.contains("line 3") && broken.err.contains("hint: "), "{}", broken.err);
}

#[test]
fn links_stay_in_their_place() {
    let place = Place::new();
    // Within home: the file that the link leads to is edited, and the link stays.
    place.write("dotfiles/claude.json", "{}\n");
    symlink(place.home.join("dotfiles/claude.json"), place.home.join(".claude.json")).unwrap();
    assert_eq!(place.ringfence(&["install", "claude", "--yes"]).code, 0);
    assert!(place.home.join(".claude.json").symlink_metadata().unwrap().is_symlink());
    assert!(fs::read_to_string(place.home.join("dotfiles/claude.json")).unwrap().contains("ringfence"));

    // In a project none is followed, also not to another place in it: a sandbox may have made it.
    place.write("outside/mcp.json", "{}\n");
    symlink("../outside/mcp.json", place.project.join(".mcp.json")).unwrap();
    symlink("../outside", place.project.join(".cursor")).unwrap();
    symlink("nowhere", place.project.join(".vscode")).unwrap();
    place.write("project/elsewhere/config.toml", "");
    symlink("elsewhere", place.project.join(".codex")).unwrap();
    for client in ["claude", "cursor", "vscode", "codex"] {
        let done = place.ringfence(&["install", client, "--scope", "project", "--yes"]);
        assert!(done.code == 125 && done.err.contains("a symlink on the way"), "{client}: {}", done.err);
    }
    assert_eq!(fs::read_to_string(place.project.join("elsewhere/config.toml")).unwrap(), "");
    assert_eq!(fs::read_to_string(place.home.join("outside/mcp.json")).unwrap(), "{}\n");
    assert_eq!(names(&place.home.join("outside")), ["mcp.json"]);

    // What holds the name while a box runs.
    fs::create_dir(place.project.join(".gemini")).unwrap();
    fs::create_dir(place.project.join(".gemini/settings.json")).unwrap();
    let done = place.ringfence(&["install", "gemini", "--scope", "project", "--yes"]);
    assert!(done.code == 125 && done.err.contains("end the sandbox first"), "{}", done.err);
}

#[test]
fn variables_move_the_file() {
    let place = Place::new();
    for (variable, client, file) in [
        ("CODEX_HOME", "codex", "config.toml"),
        ("CLAUDE_CONFIG_DIR", "claude", ".claude.json"),
        ("XDG_CONFIG_HOME", "vscode", "Code/User/mcp.json"),
    ] {
        let base = place.home.join("moved").join(client);
        fs::create_dir_all(&base).unwrap();
        let output = place.command(["install", client, "--yes"]).env(variable, &base).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(fs::read_to_string(base.join(file)).unwrap().contains("ringfence"));
    }
}

#[test]
fn as_an_ordinary_user() {
    support::as_an_ordinary_user();
}
