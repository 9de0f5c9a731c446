//! The report's page.

use charts::escape;

use super::claims::Found;
use super::experiments::Experiment;
use super::measured::Measured;
use crate::machine::Machine;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:1040px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0;font-size:13px}td,th{border:1px solid #ccc;padding:2px 8px;text-align:right}\
td:first-child,th:first-child,td:nth-child(2){text-align:left}img{max-width:100%;border:1px solid #ddd}figure{margin:1.2em 0}.claims td{text-align:left;width:50%;vertical-align:top}";

const HEAD: &str = "<tr><th>part</th><th>series</th><th>at</th><th>kIOPS</th><th>GB/s</th><th>by floor</th><th>by floor, CPU time</th>\
<th>CPU ns/op</th><th>mean us</th><th>p99 us</th><th>read amp.</th><th>write amp.</th><th>hits</th></tr>";

/// One experiment.
pub(super) fn section(experiment: &Experiment, plots: &[(String, String)], measured: &[Measured]) -> String {
    let mut text = format!(
        "<h2 id=\"{0}\">{0}: {1}</h2><p>{2}</p>",
        experiment.name,
        escape(experiment.title),
        escape(experiment.note)
    );
    if measured.is_empty() {
        return text + "<p>Nothing was run: no traces were given.</p>";
    }
    text += &claims(experiment, measured);
    text += &figures(plots);
    let rows: String = measured.iter().map(row).collect();
    text + "<details><summary>figures</summary><table>" + HEAD + &rows + "</table></details>"
}

/// The paper's findings beside those of these runs.
fn claims(experiment: &Experiment, measured: &[Measured]) -> String {
    let found = Found(measured);
    let rows = experiment.claims.iter().map(|claim| {
        let here = (claim.here)(&found).unwrap_or_else(|| "the runs for it were not made".to_string());
        format!("<tr><td>{}</td><td>{}</td></tr>", escape(claim.paper), escape(&here))
    });
    let rows: String = rows.collect();
    format!("<table class=\"claims\"><tr><th>the paper</th><th>here</th></tr>{rows}</table>")
}

fn row(measured: &Measured) -> String {
    let figures = &measured.figures;
    let floor = |of: fn(&crate::figures::Roofline) -> f64| {
        figures.roofline.as_ref().map_or_else(|| "n/a".to_string(), |roofline| format!("{:.2}", of(roofline)))
    };
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.2}</td><td>{}</td><td>{}</td><td>{:.0}</td><td>{:.1}</td>\
         <td>{:.1}</td><td>{:.3}</td><td>{:.3}</td><td>{:.1} %</td></tr>",
        escape(&measured.panel),
        escape(&measured.series),
        escape(&measured.x),
        figures.iops / 1e3,
        figures.bytes_per_s / 1e9,
        floor(|roofline| roofline.ratio),
        floor(|roofline| roofline.cpu_ratio),
        figures.cpu_ns_per_op,
        figures.lat_ns.mean / 1e3,
        figures.lat_ns.p99 as f64 / 1e3,
        figures.amplification.read,
        figures.amplification.write,
        100.0 * figures.parity_cache.hit_rate
    )
}

/// What the page is about, where runs are made on this machine.
pub(super) fn about_machine(machine: &Machine, lab: &str) -> String {
    let Machine { cpu, cores, kernel, parity_kernel, load_before } = machine;
    format!(
        "<p>The experiments of the StRAID paper's section 5, on {}: {}, {cores} cores, Linux {}, parity by \
         {parity_kernel}; load average at the end {load_before}. The floor (roofline) is what plain copies and parity \
         passes of the same requests reach on the same cores. {RAW}</p>",
        escape(lab),
        escape(cpu),
        escape(kernel)
    )
}

/// Where the figures are.
pub(super) const RAW: &str = "All figures are in <a href=\"figures.json\">figures.json</a>.";

/// Plots with their captions.
pub(super) fn figures(plots: &[(String, String)]) -> String {
    let figure = |(file, caption): &(String, String)| {
        let caption = escape(caption);
        format!("<figure><img src=\"{file}\" alt=\"{caption}\"><figcaption>{caption}</figcaption></figure>")
    };
    plots.iter().map(figure).collect()
}

/// The whole page.
pub(super) fn page(about: &str, sections: &[String]) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Twill: benchmarks</title>\
         <style>{STYLE}</style></head><body><h1>Twill: benchmarks</h1>{about}{}</body></html>\n",
        sections.concat()
    )
}
