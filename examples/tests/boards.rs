//! The boards have one `main.rs`, except for a few lines.

use std::fs;
use std::path::Path;

#[test]
fn the_firmware_of_each_board_differs_from_the_pico_w_only_in_these_lines() {
    let original = main_of("pico-w");
    for (board, own, missing) in [
        (
            "nucleo-h563zi",
            &["let entropy = |bytes: &mut [u8]| rng.fill_bytes(bytes);"][..],
            &[
                "mod entropy;",
                "let entropy = |bytes: &mut [u8]| rng.fill(bytes);",
                "// Over Wi-Fi, the retry of a lost frame takes some time.",
                "let Ok(options) = options.node_timeout(Duration::from_millis(250)) else {",
                "panic!(\"a round of 250 ms is shorter than the TTL\")",
            ][..],
        ),
        (
            "esp32-c6",
            &[
                "#[esp_hal::main]",
                "rng,",
                "let entropy = |bytes: &mut [u8]| rng.read(bytes);",
            ],
            &[
                "mod entropy;",
                "#[embassy_executor::main]",
                "mut rng,",
                "let entropy = |bytes: &mut [u8]| rng.fill(bytes);",
            ],
        ),
    ] {
        let copy = main_of(board);
        assert_eq!(lines_only_in(&copy, &original), own, "{board}");
        assert_eq!(lines_only_in(&original, &copy), missing, "{board}");
    }
}

fn main_of(board: &str) -> String {
    let boards = Path::new(env!("CARGO_MANIFEST_DIR")).join("boards");
    fs::read_to_string(boards.join(board).join("src/main.rs")).unwrap_or_default()
}

/// The lines of `text` that `other` does not contain, without their indentation.
fn lines_only_in<'a>(text: &'a str, other: &str) -> Vec<&'a str> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !other.lines().any(|other| other.trim() == *line))
        .collect()
}
