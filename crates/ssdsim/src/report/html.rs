//! The report's pages.

use charts::escape;

use super::{
    claims::Claim,
    collect::{Data, Plan, VARIANT_TRACES, VariantRow},
    figures::Figure,
};
use crate::{generate::PROFILES, outcome::Outcome};

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:3px 9px;text-align:right}\
td:first-child,th:first-child{text-align:left}caption{text-align:left;font-weight:bold;padding:4px 0}\
img{max-width:100%;border:1px solid #ddd}figure{margin:1.2em 0}";

/// The index.
pub fn index(plan: &Plan, data: &Data, figures: &[Figure], claims: &[Claim]) -> String {
    let requests =
        if plan.requests == u64::MAX { "all".to_string() } else { format!("the first {}", plan.requests) };
    let mut body = format!(
        "<h1>Adaptive parity update: the paper's evaluation, simulated again</h1>\
         <p>Stand-ins of the paper's six traces, {requests} requests of each, {} blocks a plane, seed {}, claims over {} seeds. Everything \
         on this page comes from the runs just made; run the same command again and it is the same byte for byte. \
         What is modelled, and what is not, is in <code>docs/ssdsim.md</code>.</p>",
        plan.blocks, plan.seed, plan.seeds
    );
    body += &claims_table(claims);
    body += &main_table(data);
    for figure in figures {
        body += &format!(
            "<figure><img src=\"{}\" alt=\"{}\"><figcaption>{}</figcaption></figure>",
            figure.file,
            escape(&figure.caption),
            escape(&figure.caption)
        );
    }
    body += &table_a2(data);
    if !data.genuine.is_empty() {
        body += &genuine_table(data);
    }
    body += &match_table(data);
    if !data.variants.is_empty() {
        body += &variants_table(&data.variants);
    }
    page("ssdsim report", &body)
}

/// Wall-clock figures, on a page of their own because they differ from run to run.
pub fn timing(data: &Data) -> String {
    let mut rows = String::new();
    for (policy, ns) in &data.decision_ns {
        rows += &row([policy.name().to_string(), format!("{ns:.1}"), format!("{:.1}", 1e3 / ns)]);
    }
    let body = format!(
        "<h1>Wall-clock figures (the paper's Fig. 14)</h1><p>The paper: 5.7 us a decision on an 800 MHz Cortex A7. \
         Here, on this machine, at 7+1:</p><table>{}{rows}</table><p>{:.2} million host requests simulated a wall \
         second, one core, over all main runs.</p>",
        head(["policy", "ns a decision", "million decisions a second"]),
        data.requests_per_second / 1e6
    );
    page("ssdsim timing", &body)
}

fn claims_table(claims: &[Claim]) -> String {
    let rows: String = claims
        .iter()
        .map(|claim| row([claim.what.to_string(), claim.paper.clone(), claim.ours.clone()]))
        .collect();
    format!(
        "<table><caption>The paper's claims and ours (negative is better; mean over the six traces, then over the \
         two stripes)</caption>{}{rows}</table>",
        head(["claim", "paper", "ours"])
    )
}

fn main_table(data: &Data) -> String {
    let ms = |ms: f64| format!("{ms:.3}");
    let mut rows = String::new();
    for group in &data.main {
        for o in &group.outcomes {
            let [mean, read, write, p99, p999, p9999] = o.latencies_ms();
            let adjusted = o.choices.adjusted as f64 / o.choices.updates().max(1) as f64;
            rows += &row([
                format!("{} {} {}", o.trace, o.stripe, o.policy.name()),
                ms(mean),
                ms(read),
                ms(write),
                ms(p99),
                ms(p999),
                ms(p9999),
                format!("{:.3}", o.cv),
                format!("{:.1} %", adjusted * 100.0),
                format!("{:.2}", o.write_amplification),
            ]);
        }
    }
    let names = ["run", "mean ms", "read", "write", "p99", "p99.9", "p99.99", "cv", "adjusted", "WAF"];
    format!("<table><caption>All main runs</caption>{}{rows}</table>", head(names))
}

fn table_a2(data: &Data) -> String {
    let mut rows = String::new();
    for (i, o) in data.balance.iter().enumerate() {
        let p =
            if o.chi_square_p < 0.001 { "&lt;0.001".to_string() } else { format!("{:.3}", o.chi_square_p) };
        rows += &row([
            format!("{} {}", i + 1, escape(&o.trace)),
            o.requests.to_string(),
            format!("{:.0}", o.chi_square),
            p,
            format!("{:.3}", o.cv),
        ]);
    }
    format!(
        "<table><caption>Table A2: χ² test that blocked requests are spread evenly over the channels (Baseline, \
         5+1)</caption>{}{rows}</table>",
        head(["trace", "requests", "χ²", "P", "cv"])
    )
}

fn genuine_table(data: &Data) -> String {
    let mut rows = String::new();
    for group in &data.genuine {
        let o = &group.outcomes;
        let change = |metric: fn(&Outcome) -> f64, of: usize, against: usize| {
            let change = metric(&o[of]) / metric(&o[against]) - 1.0;
            if change.is_finite() { format!("{:+.1}", change * 100.0) } else { "-".to_string() }
        };
        let mean = |o: &Outcome| o.all.mean_ns;
        let p999 = |o: &Outcome| o.all.p999_ns as f64;
        rows += &row([
            escape(&group.trace),
            o[0].requests.to_string(),
            format!("{:.2}", o[0].all.mean_ns / 1e6),
            change(mean, 2, 0),
            change(mean, 2, 1),
            change(mean, 3, 0),
            change(p999, 2, 0),
            change(|o| o.cv, 2, 0),
        ]);
    }
    let names = [
        "trace",
        "requests",
        "Baseline mean ms",
        "Adaptive / Baseline mean %",
        "Adaptive / BPU mean %",
        "Oracle / Baseline mean %",
        "Adaptive / Baseline p99.9 %",
        "Adaptive / Baseline cv %",
    ];
    format!("<table><caption>Genuine traces, 5+1: change in %</caption>{}{rows}</table>", head(names))
}

fn match_table(data: &Data) -> String {
    let mut rows = String::new();
    for (profile, measured) in &data.match_rows {
        let cv = data.main.iter().find(|group| group.trace == profile.name).map_or(0.0, |g| g.outcomes[0].cv);
        let intervals = |us: &[f64; 5]| us.map(|us| format!("{us:.1}")).join(" / ");
        for (of, statistics, cv) in
            [("published", &profile.published(), profile.cv), ("stand-in", measured, cv)]
        {
            rows += &row([
                format!("{} {of}", profile.name),
                statistics.requests.to_string(),
                format!("{:.1} %", statistics.write_ratio * 100.0),
                format!("{:.1}", statistics.write_kib),
                format!("{:.1} %", statistics.update_ratio * 100.0),
                format!("{cv:.2}"),
                intervals(&statistics.interval_us),
            ]);
        }
    }
    format!(
        "<table><caption>Tables III and IV: the published traces and the stand-ins (the largest interval needs the \
         full length to appear)</caption>{}{rows}</table>",
        head([
            "trace",
            "requests",
            "writes",
            "write KiB",
            "updates",
            "cv",
            "intervals 20 / 40 / 60 / 80 / 100 % us"
        ])
    )
}

fn variants_table(variants: &[VariantRow]) -> String {
    let change = |outcomes: &[Outcome], against: usize, metric: fn(&Outcome) -> f64| {
        let change = metric(&outcomes[2]) / metric(&outcomes[against]) - 1.0;
        if change.is_finite() { format!("{:+.1}", change * 100.0) } else { "-".to_string() }
    };
    let mut rows = String::new();
    for variant in variants {
        let mut cells = vec![format!("<b>{}</b>: {}", variant.name, variant.why)];
        for outcomes in &variant.outcomes {
            cells.push(format!("{:.2}", outcomes[0].all.mean_ns / 1e6));
            let mean = |against| change(outcomes, against, |o| o.all.mean_ns);
            let p999 = |against| change(outcomes, against, |o| o.all.p999_ns as f64);
            let cv = |against| change(outcomes, against, |o| o.cv);
            cells.push(format!("{} / {}", mean(0), mean(1)));
            cells.push(format!("{} / {}", p999(0), p999(1)));
            cells.push(format!("{} / {}", cv(0), cv(1)));
        }
        rows += &row(cells);
    }
    let mut names = vec!["variation".to_string()];
    for index in VARIANT_TRACES {
        let name = PROFILES[index].name;
        names.extend([format!("{name}: Baseline ms"), "mean".into(), "p99.9".into(), "cv".into()]);
    }
    format!(
        "<table><caption>Why the sizes of effect are what they are: one thing changed at a time, 5+1. Change of \
         Adaptive in % against Baseline / against BPU</caption>{}{rows}</table>",
        head(names)
    )
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells: String = cells.into_iter().map(|cell| format!("<td>{cell}</td>")).collect();
    format!("<tr>{cells}</tr>\n")
}

fn head<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let cells: String = names.into_iter().map(|name| format!("<th>{}</th>", name.as_ref())).collect();
    format!("<tr>{cells}</tr>\n")
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )
}
