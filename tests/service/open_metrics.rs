//! A strict parser of the part of OpenMetrics 1.0 that skep writes.

use std::collections::{BTreeMap, BTreeSet};

/// The labels of a series, in order.
type Labels = Vec<(String, String)>;
/// Buckets of a histogram: bound and count.
type Buckets = Vec<(f64, f64)>;

/// The series of a text, by name and labels.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<(String, Labels), f64>);

impl Samples {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.keys().map(|(name, _)| name.as_str()).collect();
        names.dedup();
        names
    }

    /// Whether there is a series with at least these labels, `a="1",b="2"`.
    pub(crate) fn has(&self, name: &str, labels: &str) -> bool {
        let wanted: Vec<&str> = labels.split(',').filter(|label| !label.is_empty()).collect();
        self.0.keys().any(|(other, own)| {
            let own: Vec<String> = own.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
            other == name && wanted.iter().all(|label| own.iter().any(|own| own == label))
        })
    }

    /// The value of the series with exactly these labels; 0 where it is not there yet.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut labels: Vec<_> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        labels.sort();
        self.0.get(&(name.to_owned(), labels)).copied().unwrap_or(0.0)
    }
}

/// A metric family that is being parsed.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    unit: Option<String>,
    samples: usize,
}

/// Parses a complete text.
pub(crate) fn read(text: &str) -> Result<Samples, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the text does not end with `# EOF`")?;
    let mut samples = Samples::default();
    let mut seen = BTreeSet::new();
    let mut family = Family::default();
    for line in body.lines() {
        let error = |why: &str| format!("{why}: `{line}`");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| error("no help"))?;
            close(&family)?;
            family = Family { name: checked(name)?, ..Family::default() };
            if !seen.insert(name.to_owned()) || !help.ends_with('.') {
                return Err(error("a family twice, or help that is no sentence"));
            }
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| error("no type"))?;
            if name != family.name || !["counter", "gauge", "histogram", "info"].contains(&kind) {
                return Err(error("a type out of place"));
            }
            family.kind = kind.to_owned();
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').ok_or_else(|| error("no unit"))?;
            if name != family.name || !name.ends_with(&format!("_{unit}")) || family.samples > 0 {
                return Err(error("a unit out of place"));
            }
            family.unit = Some(unit.to_owned());
        } else {
            let (name, labels, value) = sample(line).ok_or_else(|| error("no sample"))?;
            fits(&family, &name, &labels, value).map_err(error)?;
            family.samples += 1;
            if samples.0.insert((name, labels), value).is_some() {
                return Err(error("a series twice"));
            }
        }
    }
    close(&family)?;
    histograms(&samples)?;
    Ok(samples)
}

fn checked(name: &str) -> Result<String, String> {
    let good =
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if good { Ok(name.to_owned()) } else { Err(format!("`{name}` is no name")) }
}

fn close(family: &Family) -> Result<(), String> {
    if family.name.is_empty() || (!family.kind.is_empty() && family.samples > 0) {
        return Ok(());
    }
    Err(format!("{} has no type or no samples", family.name))
}

fn fits(family: &Family, name: &str, labels: &[(String, String)], value: f64) -> Result<(), &'static str> {
    let suffix = name.strip_prefix(family.name.as_str()).ok_or("a sample outside its family")?;
    let allowed: &[&str] = match family.kind.as_str() {
        "counter" => &["_total"],
        "gauge" => &[""],
        "info" => &["_info"],
        "histogram" => &["_bucket", "_sum", "_count"],
        _ => return Err("a sample before its type"),
    };
    if !allowed.contains(&suffix) {
        return Err("a sample with the name of another type");
    }
    if (suffix == "_bucket") != labels.iter().any(|(key, _)| key == "le") {
        return Err("a bucket without a bound, or a bound without a bucket");
    }
    if value.is_nan() || (family.kind != "gauge" && value < 0.0) || (family.kind == "info" && value != 1.0) {
        return Err("a value that it cannot have");
    }
    Ok(())
}

fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let (name, labels, value) = match line.split_once('{') {
        None => {
            let (name, value) = line.split_once(' ')?;
            (name, Vec::new(), value)
        }
        Some((name, rest)) => {
            let (labels, value) = rest.rsplit_once("} ")?;
            (name, pairs(labels)?, value)
        }
    };
    Some((checked(name).ok()?, labels, value.parse().ok()?))
}

/// Parses labels, sorted. A label must not occur twice.
fn pairs(mut text: &str) -> Option<Labels> {
    let mut labels = BTreeMap::new();
    while !text.is_empty() {
        let (key, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    c @ ('"' | '\\') => c,
                    _ => return None,
                }),
                (_, c) => value.push(c),
            }
        };
        if labels.insert(checked(key).ok()?, value).is_some() {
            return None;
        }
        text = &rest[end + 1..];
        text = if text.is_empty() { text } else { text.strip_prefix(',')? };
    }
    Some(labels.into_iter().collect())
}

/// Checks that bucket counts do not decrease, and that the last one equals the total.
fn histograms(samples: &Samples) -> Result<(), String> {
    let mut groups: BTreeMap<(String, Labels), Buckets> = BTreeMap::new();
    for ((name, labels), value) in &samples.0 {
        if let Some(base) = name.strip_suffix("_bucket") {
            let (bound, rest): (Vec<_>, Vec<_>) = labels.iter().cloned().partition(|(key, _)| key == "le");
            let bound = bound[0].1.parse::<f64>().map_err(|error| format!("{name}: {error}"))?;
            groups.entry((base.to_owned(), rest)).or_default().push((bound, *value));
        }
    }
    for ((base, labels), mut buckets) in groups {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let grows = buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1);
        let last = buckets[buckets.len() - 1];
        let count = samples.0.get(&(format!("{base}_count"), labels.clone()));
        let sum = samples.0.get(&(format!("{base}_sum"), labels));
        if !grows || last.0 != f64::INFINITY || count != Some(&last.1) || sum.is_none() {
            return Err(format!("the buckets of {base} make no sense: {buckets:?}"));
        }
    }
    Ok(())
}

#[test]
fn what_is_no_open_metrics_is_refused() {
    let good = "# HELP a Help.\n# TYPE a counter\na_total{x=\"1,\\\"}\"} 1\na_total{x=\"2\"} 2\n# EOF\n";
    assert_eq!(read(good).unwrap().value("a_total", &[("x", "1,\"}")]), 1.0);
    for (from, to) in [
        ("# EOF\n", ""),
        ("a_total{x=\"2\"} 2\n", "a_total{x=\"1,\\\"}\"} 2\n"),
        ("a_total{x=\"2\"} 2\n", "a{x=\"2\"} 2\n"),
        ("a_total{x=\"2\"} 2\n", "b_total 2\n"),
        ("a_total{x=\"2\"} 2\n", "a_total{x=\"2\"} much\n"),
        ("a_total{x=\"2\"} 2\n", "a_total{x=\"2\",x=\"2\"} 2\n"),
        ("a_total{x=\"2\"} 2\n", "# HELP a Help.\n# TYPE a counter\na_total 2\n"),
        ("# TYPE a counter\n", ""),
        ("counter", "gauge"),
    ] {
        assert!(good.contains(from));
        assert!(read(&good.replacen(from, to, 1)).is_err(), "{from:?} -> {to:?}");
    }
}
