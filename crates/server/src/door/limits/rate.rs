//! Rates as they are written in settings: `100/s`, `60/m`, `1000/h`.

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

/// A number of requests in a window. All may come in one burst; tokens are refilled evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    count: NonZeroU32,
    window: Window,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    Second,
    Minute,
    Hour,
}

impl Rate {
    /// Failed authentications of one address: more than a person with a wrong key causes, and far too few to guess a
    /// key.
    pub(crate) const FAILED_AUTHENTICATIONS: Self =
        Self { count: NonZeroU32::new(100).unwrap(), window: Window::Minute };

    /// Entries on the waitlist from one address: enough for a person and some colleagues.
    pub(crate) const WAITLIST: Self = Self { count: NonZeroU32::new(5).unwrap(), window: Window::Hour };

    pub(crate) fn count(self) -> NonZeroU32 {
        self.count
    }

    /// The length of the window.
    pub(crate) fn seconds(self) -> u32 {
        match self.window {
            Window::Second => 1,
            Window::Minute => 60,
            Window::Hour => 3600,
        }
    }

    /// Time until one token is refilled. Never zero.
    pub(crate) fn interval(self) -> Duration {
        (Duration::from_secs(self.seconds().into()) / self.count.get()).max(Duration::from_nanos(1))
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a rate; give a positive whole number and a unit, such as `100/s`, `60/m` or `1000/h`")]
pub struct InvalidRate(String);

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let wrong = || InvalidRate(text.to_owned());
        let (count, window) = text.split_once('/').ok_or_else(wrong)?;
        // `NonZeroU32::from_str` would accept a leading `+`.
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let window = match window {
            "s" => Window::Second,
            "m" => Window::Minute,
            "h" => Window::Hour,
            _ => return Err(wrong()),
        };
        Ok(Self { count: count.parse().map_err(|_| wrong())?, window })
    }
}

impl TryFrom<String> for Rate {
    type Error = InvalidRate;

    fn try_from(text: String) -> Result<Self, InvalidRate> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = match self.window {
            Window::Second => 's',
            Window::Minute => 'm',
            Window::Hour => 'h',
        };
        write!(f, "{}/{window}", self.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rate_is_a_number_and_a_time() {
        let rate: Rate = "60/m".parse().unwrap();
        assert_eq!((rate.count().get(), rate.seconds(), rate.interval()), (60, 60, Duration::from_secs(1)));
        for wrong in ["", "60", "/s", "0/s", "-1/s", "+1/s", "1/d", "1/ s", "1.5/s", "4294967296/s", "1/s/s"]
        {
            let error = wrong.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_rate_round_trips(count in 1_u32.., window in prop::sample::select(vec!['s', 'm', 'h'])) {
            let text = format!("{count}/{window}");
            let rate: Rate = text.parse().unwrap();
            prop_assert_eq!(rate.to_string(), text);
            prop_assert!(rate.interval() > Duration::ZERO);
        }

        #[test]
        fn the_parser_never_panics(text in any::<String>()) {
            let _ = text.parse::<Rate>();
        }
    }
}
