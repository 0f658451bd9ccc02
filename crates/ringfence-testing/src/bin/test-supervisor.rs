//! Supervises sessions as `ringfence session supervise` does, with the test engine beside the others.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfence_testing::engine::add();
    let ends = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
        .and_then(|request| Ok((request, rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?)));
    let Ok((request, answer)) = ends else { return ExitCode::FAILURE };
    // Whoever made the session waits until nobody holds these any more.
    let null = std::fs::File::options().read(true).write(true).open("/dev/null");
    let closed = null.is_ok_and(|null| {
        rustix::stdio::dup2_stdin(&null).is_ok()
            && rustix::stdio::dup2_stdout(&null).is_ok()
            && rustix::stdio::dup2_stderr(&null).is_ok()
    });
    if !closed || ringfence::session::supervise(std::fs::File::from(request), answer).is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
