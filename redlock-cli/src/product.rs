//! Which server a node runs, by its reply to INFO.

use crate::nodes::Info;

/// The product of a server, as far as it tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Product {
    /// Or a server that passes for Redis.
    Redis,
    Valkey,
    Dragonfly,
    Garnet,
    Kvrocks,
}

/// All of them are compatible with a version of Redis, and also tell that one. So the first field that is there decides.
const VERSIONS: [(&str, Product); 5] = [
    ("valkey_version", Product::Valkey),
    ("dragonfly_version", Product::Dragonfly),
    ("garnet_version", Product::Garnet),
    ("kvrocks_version", Product::Kvrocks),
    ("redis_version", Product::Redis),
];

impl Product {
    /// Returns the product of a server, and its version if it tells one.
    pub(crate) fn of(info: &Info) -> (Self, Option<&str>) {
        VERSIONS
            .into_iter()
            .find_map(|(field, product)| Some((product, Some(info.text(field)?))))
            .unwrap_or((Self::Redis, None))
    }

    /// The name for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Valkey => "Valkey",
            Self::Dragonfly => "Dragonfly",
            Self::Garnet => "Garnet",
            Self::Kvrocks => "Kvrocks",
        }
    }

    /// The name for programs.
    pub(crate) const fn id(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
            Self::Dragonfly => "dragonfly",
            Self::Garnet => "garnet",
            Self::Kvrocks => "kvrocks",
        }
    }

    /// What an operator must know about locks on this product, if it cannot be read from the server.
    pub(crate) const fn caveat(self) -> Option<&'static str> {
        match self {
            Self::Garnet => Some(
                "Garnet runs scripts beside other commands unless its Lua transaction mode is on, so another client can change a lock \
                 between two steps of a script: turn it on, and run \"redlock conformance\"",
            ),
            Self::Dragonfly | Self::Kvrocks => {
                Some("this server is not Redis or Valkey: run \"redlock conformance\"")
            }
            Self::Redis | Self::Valkey => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_recognised_although_it_also_tells_the_version_of_redis_that_it_is_like() {
        for (text, product, version) in [
            ("redis_version:7.0.15\r\n", Product::Redis, Some("7.0.15")),
            (
                "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n",
                Product::Valkey,
                Some("9.1.2"),
            ),
            (
                "garnet_version:1.0.50\r\nredis_version:7.4.3\r\n",
                Product::Garnet,
                Some("1.0.50"),
            ),
            (
                "redis_version:7.4.0\r\ndragonfly_version:df-v1.30.0\r\n",
                Product::Dragonfly,
                Some("df-v1.30.0"),
            ),
            ("role:master\r\n", Product::Redis, None),
        ] {
            assert_eq!(
                Product::of(&Info::parse(text)),
                (product, version),
                "{text}"
            );
        }
    }

    #[test]
    fn a_server_that_may_run_scripts_beside_others_has_a_caveat_that_says_so() {
        assert!(
            Product::Garnet
                .caveat()
                .unwrap()
                .contains("beside other commands")
        );
        assert_eq!(Product::Redis.caveat(), None);
        assert_eq!(Product::Valkey.caveat(), None);
    }
}
