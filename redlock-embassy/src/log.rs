//! Logging for whoever asked for it: defmt, else log, else nobody.

macro_rules! debug {
    ($format:literal $(, $argument:expr)* $(,)?) => {{
        #[cfg(feature = "defmt")]
        defmt::debug!($format $(, $argument)*);
        #[cfg(all(feature = "log", not(feature = "defmt")))]
        log::debug!($format $(, $argument)*);
        #[cfg(not(any(feature = "defmt", feature = "log")))]
        { $(let _unused = &$argument;)* }
    }};
}

macro_rules! warning {
    ($format:literal $(, $argument:expr)* $(,)?) => {{
        #[cfg(feature = "defmt")]
        defmt::warn!($format $(, $argument)*);
        #[cfg(all(feature = "log", not(feature = "defmt")))]
        log::warn!($format $(, $argument)*);
        #[cfg(not(any(feature = "defmt", feature = "log")))]
        { $(let _unused = &$argument;)* }
    }};
}

pub(crate) use {debug, warning};
