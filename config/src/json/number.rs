//! Numbers as people write them: `5e8` is an integer, exactly.

use std::fmt;

/// A JSON number, kept as written.
#[derive(Clone, PartialEq, Debug)]
pub struct Number {
    text: String,
}

/// Why a number is not the integer that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NumberError {
    /// It has a fractional part.
    #[error("it is not a whole number")]
    Fraction,
    /// It lies outside the signed 128-bit range, or its exponent is absurd.
    #[error("it is too large")]
    TooLarge,
    /// The text is no number.
    #[error("it is not a number")]
    Malformed,
}

/// Digits beyond which an exponent is refused: far above any integer field, so that `1e999999999`
/// costs nothing.
const MAX_DIGITS: i64 = 40;

impl Number {
    /// Takes a text that follows JSON's grammar for numbers (a leading `+` or `.` does not).
    #[must_use]
    pub fn parse(text: &str) -> Option<Number> {
        let rest = text.strip_prefix('-').unwrap_or(text);
        let (mantissa, exponent) = match rest.find(['e', 'E']) {
            Some(at) => (&rest[..at], Some(&rest[at + 1..])),
            None => (rest, None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let unsigned = |s: &str| s.strip_prefix(['+', '-']).unwrap_or(s).to_owned();
        let ok = digits(whole)
            && (whole.len() == 1 || !whole.starts_with('0'))
            && fraction.is_none_or(digits)
            && exponent.is_none_or(|e| digits(&unsigned(e)));
        ok.then(|| Number { text: text.to_owned() })
    }

    /// As written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The nearest f64; infinite when it is too large for one.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        self.text.parse().unwrap_or(f64::NAN)
    }

    /// The exact integer: `5e8`, `2E+8`, `1.5e3` and `16.0` are integers, `1.5` is not.
    ///
    /// # Errors
    /// When it has a fractional part or more than 38 digits.
    pub fn to_integer(&self) -> Result<i128, NumberError> {
        let (negative, rest) = match self.text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, self.text.as_str()),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((m, e)) => (m, e.parse::<i64>().map_err(|_| NumberError::TooLarge)?),
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits = format!("{whole}{fraction}");
        let mut shift = exponent.saturating_sub(fraction.len() as i64);
        while shift < 0 && digits.len() > 1 && digits.ends_with('0') {
            digits.pop();
            shift += 1;
        }
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return Ok(0);
        }
        if shift < 0 {
            return Err(NumberError::Fraction);
        }
        if shift > MAX_DIGITS || digits.len() > MAX_DIGITS as usize {
            return Err(NumberError::TooLarge);
        }
        let value: i128 = format!("{digits}{}", "0".repeat(shift as usize))
            .parse()
            .map_err(|_| NumberError::TooLarge)?;
        Ok(if negative { -value } else { value })
    }

    pub(crate) fn to_plain(&self) -> serde_json::Value {
        match self.to_integer() {
            Ok(n) if self.text.bytes().all(|b| b != b'.') => match (i64::try_from(n), n) {
                (Ok(n), _) => n.into(),
                (Err(_), n) => {
                    u64::try_from(n).map_or_else(|_| self.to_f64().into(), serde_json::Value::from)
                }
            },
            _ => self.to_f64().into(),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(text: &str) -> Result<i128, NumberError> {
        Number::parse(text).ok_or(NumberError::Malformed)?.to_integer()
    }

    /// Case C05: what people write for an integer is taken exactly.
    #[test]
    fn integers_as_people_write_them() {
        for (text, value) in [
            ("5e8", 500_000_000),
            ("2E+8", 200_000_000),
            ("1e9", 1_000_000_000),
            ("1.5e3", 1500),
            ("16.0", 16),
            ("-5", -5),
            ("0", 0),
            ("0e999999999999", 0),
            ("1000e-3", 1),
            ("9223372036854775807", 9_223_372_036_854_775_807),
        ] {
            assert_eq!(integer(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_not_an_integer_says_why() {
        assert_eq!(integer("1.5"), Err(NumberError::Fraction));
        assert_eq!(integer("1e-3"), Err(NumberError::Fraction));
        assert_eq!(integer("1e999999999"), Err(NumberError::TooLarge));
        assert_eq!(integer("1e99999999999999999999"), Err(NumberError::TooLarge));
        for text in ["", "-", "01", "1.", ".5", "+1", "1e", "1e+", "0x10", "NaN", "1_000", "1e+-1"]
        {
            assert_eq!(integer(text), Err(NumberError::Malformed), "{text}");
        }
    }
}
