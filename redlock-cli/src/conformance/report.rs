//! The report, as text and as JSON.

use core::fmt;

use serde_json::{Map, Value, json};

use super::capability::Kind;
use super::examination::Examination;

/// What the servers can serve, and what is required of them.
#[derive(Debug)]
pub(super) struct Report {
    nodes: Vec<Examination>,
    required: Vec<Kind>,
}

impl Report {
    pub(super) const fn new(nodes: Vec<Examination>, required: Vec<Kind>) -> Self {
        Self { nodes, required }
    }

    /// Whether each server was examined to the end.
    pub(super) fn is_complete(&self) -> bool {
        self.nodes.iter().all(|node| node.error.is_none())
    }

    /// Whether each server serves every kind that is required.
    pub(super) fn conforms(&self) -> bool {
        let serves = |node: &Examination| self.required.iter().all(|kind| node.serves(*kind));
        self.nodes.iter().all(serves)
    }

    pub(super) fn json(&self) -> Value {
        let required: Vec<_> = self.required.iter().map(|kind| kind.name()).collect();
        json!({
            "conforms": self.conforms(),
            "required": required,
            "nodes": self.nodes.iter().map(node).collect::<Vec<_>>(),
        })
    }
}

fn node(examination: &Examination) -> Value {
    let product = examination.product.as_ref();
    let capabilities = examination.capabilities.iter();
    let mut node = Map::new();
    node.insert("node".to_owned(), json!(examination.node));
    node.insert(
        "product".to_owned(),
        json!(product.map(|(product, _)| product.id())),
    );
    node.insert(
        "version".to_owned(),
        json!(product.map(|(_, version)| version)),
    );
    for kind in Kind::ALL {
        node.insert(kind.name().to_owned(), json!(examination.serves(kind)));
    }
    let capabilities: Vec<_> = capabilities.map(|capability| capability.json()).collect();
    node.insert("capabilities".to_owned(), json!(capabilities));
    node.insert("error".to_owned(), json!(examination.error));
    Value::Object(node)
}

/// For each server: its capabilities, then the kinds of locks.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for examination in &self.nodes {
            f.write_str(&examination.node)?;
            if let Some((product, version)) = &examination.product {
                write!(
                    f,
                    "  {} {}",
                    product.name(),
                    version.as_deref().unwrap_or("?")
                )?;
            }
            writeln!(f)?;
            for capability in &examination.capabilities {
                let answer = answer(capability.is_there());
                writeln!(
                    f,
                    "  {answer:3} {:10} {}",
                    capability.name,
                    capability.message()
                )?;
            }
            if let Some(error) = &examination.error {
                writeln!(f, "  not examined to the end: {error}")?;
                continue;
            }
            for kind in Kind::ALL {
                let missing: Vec<_> = examination.missing(kind).collect();
                let answer = answer(missing.is_empty());
                write!(f, "  {answer:3} {}", kind_in_words(kind))?;
                if !missing.is_empty() {
                    write!(f, ", for lack of: {}", missing.join(", "))?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

const fn answer(is_yes: bool) -> &'static str {
    if is_yes { "yes" } else { "no" }
}

const fn kind_in_words(kind: Kind) -> &'static str {
    match kind {
        Kind::Plain => "plain locks",
        Kind::Guard => "the restart guard of plain locks (without it: --no-restart-guard)",
        Kind::Fenced => "fenced locks",
        Kind::Line => "the waiting line (without it, clients poll)",
    }
}
