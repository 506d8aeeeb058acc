"""Head, style sheet and script of the report: light and dark, a window of any width, tables that sort."""

from icepuffin.assets.report.markup import Markup
from icepuffin.assets.report.svg_charts import STYLE

GENERATOR = Markup('<meta name="generator" content="icepuffin report"/>')
"""Element of the head of each page, by which a file is known to be one"""
LIGHT = {
    "back": "#f6f6fa", "card": "#ffffff", "text": "#1b1b26", "muted": "#565668", "line": "#dcdce6",
    "accent": "#4f43dd", "second": "#147a5b", "third": "#b4690e", "fourth": "#a3366f", "faint": "#8f8f9f",
    "good": "#0a5c40", "good-back": "#dff5ea", "late": "#7a4a00", "late-back": "#fff0cc",
    "bad": "#a11a1a", "bad-back": "#fde6e6",
}  # fmt: skip
"""Colours by name"""
DARK = {
    "back": "#101017", "card": "#191922", "text": "#ececf4", "muted": "#a9a9bb", "line": "#33333f",
    "accent": "#9d95ff", "second": "#4cc79b", "third": "#f0b45e", "fourth": "#ea86bb", "faint": "#77778a",
    "good": "#8ce6bf", "good-back": "#10352a", "late": "#ffd27a", "late-back": "#3b2b08",
    "bad": "#ffadad", "bad-back": "#431818",
}  # fmt: skip
"""Colours by name, in a dark window"""
_RULES = """*{box-sizing:border-box}p{margin:.3rem 0}dl,dd,ul,figure{margin:0}
body{margin:0 auto;max-width:1360px;padding:clamp(12px,2.5vw,24px);background:var(--back);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;overflow-wrap:anywhere}
h1{margin:0;font-size:clamp(1.4rem,4vw,2rem);line-height:1.2}h2{margin:2.2rem 0 .7rem;font-size:1.3rem}
h3{margin:0 0 .4rem;font-size:1rem}dl+h3{margin-top:.8rem}
.quiet,figcaption,footer,dt,small{color:var(--muted);font-size:.87rem}
.state{display:inline-block;margin:.7rem 0 .4rem;padding:.35rem .8rem;border-radius:8px;
font-size:1.1rem;font-weight:600}
.good{color:var(--good);background:var(--good-back)}.late{color:var(--late);background:var(--late-back)}
.bad,.bad.card{color:var(--bad);background:var(--bad-back)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(150px,46%),1fr));gap:12px;margin:1rem 0}
.tiles>div,figure,.card{padding:12px 14px;background:var(--card);border:1px solid var(--line);border-radius:10px}
.tiles dd{font-size:1.35rem;font-weight:600;line-height:1.3}small{display:block;font-weight:400}
.facts{display:flex;flex-wrap:wrap;gap:4px 22px;margin-bottom:12px}.facts div{display:flex;gap:6px;align-items:baseline}
.parts div{display:flex;justify-content:space-between;gap:12px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:12px;margin:12px 0;
align-items:start}
figure svg{display:block;width:100%;max-width:440px;height:auto;margin:auto}
figure .strip{max-width:none;height:22px;margin:2px 0 8px}
ul{display:grid;gap:10px;padding:0;list-style:none}
code{display:inline-block;padding:.1em .4em;border:1px solid var(--line);border-radius:5px;background:var(--back)}
.key{display:inline-block;width:.8em;height:.8em;margin:0 .35em 0 0;border-radius:2px}figcaption .key:not(:first-child){
margin-left:1em}.key.a{background:var(--accent)}.key.b{background:var(--second)}.key.c{background:var(--third)}
.key.d{background:var(--fourth)}.key.e{background:var(--faint)}
.scroll{width:fit-content;max-width:100%;max-height:27rem;overflow:auto;margin:12px 0;background:var(--card);
border:1px solid var(--line);border-radius:10px}
:focus-visible{outline:2px solid var(--accent);outline-offset:1px}
table{border-collapse:collapse;font-size:.87rem;overflow-wrap:normal}
caption{padding:10px 12px 4px;text-align:left;font-weight:600}
th,td{padding:5px 12px;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
th,td.list{white-space:normal}
th{position:sticky;top:0;background:var(--card);color:var(--muted);vertical-align:bottom}
.number{text-align:right}td.number{font-variant-numeric:tabular-nums}
th button{padding:0;text-align:inherit;border:0;background:none;color:inherit;font:inherit;cursor:pointer}
th[aria-sort=ascending] button::after{content:" ▲"}th[aria-sort=descending] button::after{content:" ▼"}
footer{margin:2.5rem 0 1rem}@media print{.scroll{max-height:none}}"""
SCRIPT = Markup("""
document.querySelectorAll("th").forEach(head => {
  const button = document.createElement("button"), row = head.parentNode, body = head.closest("table").tBodies[0];
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1, column = [...row.children].indexOf(head);
    [...row.children].forEach(other => { other.ariaSort = null; });
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    const value = line => line.cells[column].dataset.v ?? line.cells[column].textContent;
    const compared = head.className === "number" ? (a, b) => a - b : (a, b) => a.localeCompare(b);
    const order = (a, b) => !a - !b || sign * compared(a, b);
    body.append(...[...body.rows].sort((a, b) => order(value(a), value(b))));
  });
});
""")


def style_sheet() -> Markup:
    """The whole style sheet."""
    light, dark = ("".join(f"--{name}:{color};" for name, color in colors.items()) for colors in (LIGHT, DARK))
    scheme = f":root{{color-scheme:light dark;{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return Markup(scheme + _RULES + STYLE)
