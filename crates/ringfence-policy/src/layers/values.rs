//! Every value of a resolved policy, with where it comes from.

use super::Resolved;
use crate::layer::{LimitSettings, optional_text};
use crate::limits::{format_duration, format_size};
use crate::policy::{CommandRule, Guard, Root};
use crate::records::Records;
use crate::rules::{LayerKind, Origin};

impl Resolved {
    /// Every value with its origin, in the order of the configuration file, for `config show`.
    pub fn values(&self) -> Vec<Value> {
        let (policy, service) = (&self.policy, &self.service);
        let mut out = Vec::new();
        let mut add = |key: String, text: String| {
            let origin = self.origins.get(&key).cloned().unwrap_or_else(|| Origin {
                layer: LayerKind::Profile,
                place: format!("profile {}", self.builtin.name).into(),
            });
            out.push(Value { key, text, origin });
        };
        add("profile".into(), policy.profile.clone());
        add("engine".into(), self.engine.to_string());
        add("workdir".into(), policy.workdir().display().to_string());
        if let Some(at) = &policy.workdir_at {
            add("workdir_at".into(), at.display().to_string());
        }
        match &policy.root {
            Root::Host => add("root".into(), "host".into()),
            Root::Programs => add("root".into(), "programs".into()),
            Root::Image(name) => add("image".into(), name.clone()),
        }
        add("user".into(), policy.user.to_string());
        add("network".into(), policy.network.name().into());
        for device in &policy.devices {
            add(format!("devices.{}", device.path.display()), "true".into());
        }
        for name in &policy.caches.names {
            add(format!("caches.{name}"), if policy.caches.read_only { "read-only" } else { "shared" }.into());
        }
        if let Some(group) = &policy.caches.group {
            add("cache_group".into(), group.clone());
        }
        if policy.caches.required {
            add("caches_required".into(), "true".into());
        }
        add("docker".into(), policy.docker.to_string());
        add("nesting".into(), policy.nesting.to_string());
        add("strict".into(), policy.strict.to_string());
        add("trace_denials".into(), policy.trace_denials.to_string());
        for guarantee in &policy.optional {
            add(format!("optional.{guarantee}"), "true".into());
        }
        for preset in &self.presets {
            add(format!("presets.{}", preset.name()), "true".into());
        }
        add("env.inherit".into(), policy.env.inherit.to_string());
        for name in &policy.env.drop {
            add(format!("env.drop.{name}"), "true".into());
        }
        for name in &policy.env.pass {
            add(format!("env.pass.{name}"), "true".into());
        }
        for name in policy.env.set.keys() {
            // Values may be secrets; they are the user's to look up in the file.
            add(format!("env.set.{name}"), "set".into());
        }
        for (key, text) in LimitSettings::texts(&policy.limits, service) {
            add(key.into(), text);
        }
        let Records { output, secrets, keep, max_size, database } = &service.records;
        add("records.output".into(), output.to_string());
        add("records.keep".into(), optional_text(*keep, format_duration));
        add("records.max_size".into(), optional_text(*max_size, format_size));
        if database.is_some() {
            // A password may be part of it.
            add("records.database".into(), "set".into());
        }
        for name in secrets {
            add(format!("records.secrets.{name}"), "true".into());
        }
        add("warm".into(), service.warm.to_string());
        add("skill_verdict".into(), service.skill_verdict.to_string());
        for (name, rule) in &policy.commands {
            let text = match rule {
                CommandRule::Block => "false".into(),
                CommandRule::Guard(Guard::Git) => "@git".into(),
                CommandRule::Wrapper(path) => path.display().to_string(),
            };
            add(format!("commands.{name}"), text);
        }
        for name in &policy.allow_syscalls {
            add(format!("kernel.allow_syscalls.{name}"), "true".into());
        }
        for group in &policy.refuse_syscalls {
            add(format!("kernel.refuse_syscalls.{group}"), "true".into());
        }
        for rule in &policy.rules {
            let (key, text) = (format!("files.{}", rule.access), rule.pattern.to_string());
            out.push(Value { key, text, origin: rule.origin.clone() });
        }
        out
    }
}

/// One resolved value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The key in a configuration file, with dots.
    pub key: String,
    /// The value as text.
    pub text: String,
    /// Where it was set.
    pub origin: Origin,
}
