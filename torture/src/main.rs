//! `cargo xtask torture` and `cargo xtask recovery`.

use std::process::ExitCode;

fn main() -> ExitCode {
    if ff_torture::work_if_asked() {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["recovery", rest @ ..] => ff_torture::recovery(rest),
        rest => ff_torture::torture(rest),
    }
}
