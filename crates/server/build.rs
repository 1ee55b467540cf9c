//! Takes the white space out of `openapi.json`: the committed text is for people who read it and its changes, and half of it is
//! indentation, which neither the program nor its clients need.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=openapi.json");
    let document = fs::read_to_string("openapi.json").expect("the committed document is there");
    let folder = env::var_os("OUT_DIR").expect("cargo names the folder for what a build script makes");
    fs::write(Path::new(&folder).join("openapi.json"), compact(&document)).expect("cargo made the folder");
}

/// A JSON text without the white space between its tokens.
fn compact(text: &str) -> String {
    let (mut inside_string, mut escaped) = (false, false);
    text.chars()
        .filter(|&character| {
            let kept = inside_string || !character.is_ascii_whitespace();
            if character == '"' && !escaped {
                inside_string = !inside_string;
            }
            escaped = inside_string && character == '\\' && !escaped;
            kept
        })
        .collect()
}
