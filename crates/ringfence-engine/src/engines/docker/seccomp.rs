//! Our list of system calls in the form that Docker takes.

use ringfence_linux::seccomp::{self, Answer, Options};
use ringfence_policy::plan::Plan;
use serde::Serialize;

use crate::engines::EngineError;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: &'static str,
    default_errno_ret: u16,
    architectures: [&'static str; 1],
    syscalls: Vec<Rule>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    names: Vec<&'static str>,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno_ret: Option<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    args: Vec<Argument>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u8,
    value: u64,
    value_two: u64,
    op: &'static str,
}

#[cfg(target_arch = "x86_64")]
const ARCH: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCH: &str = "SCMP_ARCH_AARCH64";

const ENOSYS: u16 = 38;

/// The profile of a plan, as JSON.
pub fn profile(plan: &Plan) -> Result<String, EngineError> {
    let allow: Vec<&str> = plan.allow_syscalls.iter().map(String::as_str).collect();
    let refuse = plan.refuse_syscalls.iter().copied().collect();
    let options = Options { nesting: plan.nesting, allow: &allow, refuse, ..Options::default() };
    let rules = seccomp::profile(&options)?;
    let profile = Profile {
        default_action: "SCMP_ACT_ERRNO",
        default_errno_ret: ENOSYS,
        architectures: [ARCH],
        syscalls: rules
            .into_iter()
            .map(|rule| {
                let (action, errno_ret) = match rule.answer {
                    Answer::Allow | Answer::Notify => ("SCMP_ACT_ALLOW", None),
                    Answer::Errno(number) => ("SCMP_ACT_ERRNO", Some(number)),
                };
                let argument = |a: seccomp::Argument| Argument {
                    index: a.index,
                    value: a.mask,
                    value_two: a.value,
                    op: "SCMP_CMP_MASKED_EQ",
                };
                Rule { names: rule.names, action, errno_ret, args: rule.arguments.into_iter().map(argument).collect() }
            })
            .collect(),
    };
    // Names and numbers only: it cannot fail.
    Ok(serde_json::to_string(&profile).unwrap_or_default())
}
