//! The order of the modules: in each package every module needs only those below it, so the code can be read from the top.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const PACKAGES: [&str; 7] = [
    "redlock-core",
    "redlock-std",
    "redlock-embassy",
    "redlock-embassy-tls",
    "redlock-cli",
    "tests",
    "proof",
];

/// A module, by its path within its package: `["node", "queue"]`.
type Module = Vec<String>;

#[test]
fn no_modules_of_a_package_need_each_other_in_a_circle() {
    for package in PACKAGES {
        let files = files(package);
        assert!(!files.is_empty(), "{package} has no modules");
        let uses: Vec<_> = files
            .iter()
            .flat_map(|(module, text)| used(module, text, &files).map(move |used| (module, used)))
            .collect();
        // Among the modules of each folder: what a file in one of them needs, that module needs.
        let mut needs = BTreeMap::<Module, BTreeSet<Module>>::new();
        for (module, used) in uses {
            let common = module.iter().zip(&used).take_while(|(a, b)| a == b).count();
            if common < module.len() && common < used.len() {
                let (from, to) = (&module[..=common], &used[..=common]);
                needs.entry(from.to_vec()).or_default().insert(to.to_vec());
            }
        }
        if let Some(circle) = circle(&needs) {
            let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
            panic!("{package}: {}", names.join(" -> "));
        }
    }
}

#[test]
fn a_circle_is_found() {
    let module = |name: &str| vec![name.to_owned()];
    let needs = |pairs: &[(&str, &str)]| {
        let mut needs = BTreeMap::<Module, BTreeSet<Module>>::new();
        for (from, to) in pairs {
            needs.entry(module(from)).or_default().insert(module(to));
        }
        needs
    };
    assert_eq!(circle(&needs(&[("a", "b"), ("a", "c"), ("b", "c")])), None);
    let found = circle(&needs(&[("a", "b"), ("b", "c"), ("c", "b")]));
    assert_eq!(found, Some(["b", "c", "b"].map(module).to_vec()));
}

/// The source of each module, without its tests.
fn files(package: &str) -> BTreeMap<Module, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(package)
        .join("src");
    let mut files = BTreeMap::new();
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = module(path.strip_prefix(&source).unwrap());
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
                files.insert(module, code.to_owned());
            }
        }
    }
    // They name all others.
    files.retain(|module, _| !["lib", "main"].contains(&module[0].as_str()));
    files
}

fn module(path: &Path) -> Module {
    let parts = PathBuf::from(path).with_extension("");
    parts
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect()
}

/// The modules of the package that are named in `text`: by `crate::` or `super::`, the longest path that is one.
fn used<'f>(
    module: &'f Module,
    text: &'f str,
    files: &'f BTreeMap<Module, String>,
) -> impl Iterator<Item = Module> + 'f {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.collect();
    let words: Vec<_> = flat(&code)
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != ':')
        .map(str::to_owned)
        .collect();
    words.into_iter().filter_map(move |word| {
        let mut parts: Vec<_> = word.split("::").map(str::to_owned).collect();
        let mut from = Vec::new();
        if parts[0] == "super" {
            from.clone_from(module);
        } else if parts[0] != "crate" {
            return None;
        }
        while parts.first().is_some_and(|part| part == "super") {
            from.pop();
            parts.remove(0);
        }
        let path: Vec<_> = from
            .into_iter()
            .chain(parts.into_iter().skip_while(|part| part == "crate"))
            .collect();
        let lengths = (1..=path.len()).rev();
        lengths
            .map(|length| path[..length].to_vec())
            .find(|path| files.contains_key(path))
    })
}

/// The code with `a::{b, c::d}` written as `a::b, a::c::d`.
fn flat(code: &str) -> String {
    let is_of_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let mut flat = code.to_owned();
    // The innermost braces come first.
    while let Some(open) = flat.rfind("::{") {
        let close = open + flat[open..].find('}').unwrap();
        let start = flat[..open]
            .rfind(|letter| !is_of_path(letter))
            .map_or(0, |before| before + 1);
        let path = flat[start..open].to_owned();
        let names = flat[open + 3..close].split(',');
        let names: Vec<_> = names
            .map(|name| format!("{path}::{}", name.trim()))
            .collect();
        flat.replace_range(start..=close, &names.join(", "));
    }
    flat
}

/// Modules of which each needs the next, from one back to itself.
fn circle(needs: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    fn visit(
        module: &Module,
        needs: &BTreeMap<Module, BTreeSet<Module>>,
        way: &mut Vec<Module>,
        done: &mut BTreeSet<Module>,
    ) -> bool {
        if let Some(start) = way.iter().position(|before| before == module) {
            way.drain(..start);
            way.push(module.clone());
            return true;
        }
        if done.contains(module) {
            return false;
        }
        way.push(module.clone());
        for next in needs.get(module).into_iter().flatten() {
            if visit(next, needs, way, done) {
                return true;
            }
        }
        done.insert(way.pop().unwrap());
        false
    }
    let (mut way, mut done) = (Vec::new(), BTreeSet::new());
    needs
        .keys()
        .any(|module| visit(module, needs, &mut way, &mut done))
        .then_some(way)
}
