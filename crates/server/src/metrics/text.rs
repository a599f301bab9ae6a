//! The two text formats that Prometheus reads.

use http::{HeaderMap, HeaderValue, header::ACCEPT};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0, which Prometheus requests.
    OpenMetrics,
    /// The text format 0.0.4, which other tools read.
    Plain,
}

impl Format {
    /// The format that `Accept` names, or else the plain one.
    pub(crate) fn negotiate(headers: &HeaderMap) -> Self {
        let texts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let is_open_metrics = |text: &str| text.to_ascii_lowercase().contains("application/openmetrics-text");
        if texts.into_iter().any(is_open_metrics) { Self::OpenMetrics } else { Self::Plain }
    }

    pub(crate) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => OPEN_METRICS,
            Self::Plain => PLAIN,
        })
    }

    /// Converts OpenMetrics text to this format.
    pub(crate) fn convert(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Plain => plain(&open_metrics),
        }
    }
}

/// In the plain format a family has the same name as its series, and there are no units, no infos and no `# EOF`.
fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        if let Some(rest) = comment.strip_prefix("HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = comment.strip_prefix("TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, help_text)) = help.take() {
                text.push_str(&format!("# HELP {name}{suffix} {help_text}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_names_families_as_their_series() {
        let open = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total 1.5\n\
                    # HELP b What.\n# TYPE b info\nb_info{v=\"1\"} 1\n# HELP c How.\n# TYPE c gauge\nc 2\n# EOF\n";
        assert_eq!(
            Format::Plain.convert(open.to_owned()),
            "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\na_seconds_total 1.5\n\
             # HELP b_info What.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n# HELP c How.\n# TYPE c gauge\nc 2\n"
        );
        assert_eq!(Format::OpenMetrics.convert(open.to_owned()), open);
    }

    #[test]
    fn open_metrics_is_negotiated() {
        let asked = |value: Option<&'static str>| {
            let headers = value.map(|value| (ACCEPT, HeaderValue::from_static(value)));
            Format::negotiate(&headers.into_iter().collect())
        };
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(asked(Some(prometheus)), Format::OpenMetrics);
        for other in [None, Some("*/*"), Some("text/plain"), Some("application/json")] {
            assert_eq!(asked(other), Format::Plain, "{other:?}");
        }
    }
}
