"""The page's style: two themes, one column on a phone, three on a laptop."""

STYLE = """
:root { color-scheme: light dark;
  --ink: #1a1d21; --soft: #5c6570; --line: #dfe3e8; --grid: #e9ecf0; --page: #f6f7f9; --card: #fff;
  --right: #1f6fb5; --wrong: #d1571b; --bar: #b9c4d0; --on: #fff; --half: var(--ink);
  --c0: #1f6fb5; --c1: #d1571b; --c2: #0b8562; --c3: #8d4bb8;
  --c4: #9a6a00; --c5: #b03070; --c6: #2f8ea0; --c7: #55606c }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e8eaed; --soft: #a0a9b4; --line: #333a43; --grid: #2a3038; --page: #121519;
  --card: #1a1e24; --right: #5aa9ea; --wrong: #ff8f52; --bar: #4a5562; --on: #0d1013;
  --half: var(--on);
  --c0: #62b0f0; --c1: #ff9459; --c2: #3fcf9f; --c3: #c79bea;
  --c4: #e2b94d; --c5: #f28bb8; --c6: #74cfdf; --c7: #b4bdc8 } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif;
  color: var(--ink); background: var(--page); max-width: 76rem; margin: 0 auto;
  padding: 1.5rem 1rem 4rem; -webkit-text-size-adjust: 100% }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere }
section { margin-top: 2.6rem } header + main > section:first-child { margin-top: 0 }
h2 { font-size: 1.3rem; margin: 0 0 .3rem } .tiles + h2 { margin-top: 1.8rem }
p + h2 { margin-top: 1rem }
h3 { font-size: 1rem; margin: .3rem 0 .4rem } .card + h3 { margin-top: 1rem }
p { margin: .3rem 0 .6rem; max-width: 46rem } .soft, .lead p { color: var(--soft) }
code, pre { font-size: .9em;
  font-family: ui-monospace, 'Cascadia Mono', 'Liberation Mono', monospace }
pre { line-height: 1.45; overflow-x: auto; margin: .5rem 0 }
.card, figure, details { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px }
.card { padding: .5rem 1rem; overflow-x: auto;
  /* A shadow at an edge that more lies beyond; covers scroll along and hide it at the ends. */
  background: linear-gradient(90deg, var(--card) 40%, transparent) left / 2rem 100% no-repeat local,
    linear-gradient(-90deg, var(--card) 40%, transparent) right / 2rem 100% no-repeat local,
    linear-gradient(90deg, var(--bar), transparent) left / .8rem 100% no-repeat scroll,
    linear-gradient(-90deg, var(--bar), transparent) right / .8rem 100% no-repeat scroll,
    var(--card) }
.tiles { display: grid; gap: .75rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)) }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: .7rem .9rem }
.tile b { display: block; font-size: 1.5rem; line-height: 1.25; font-variant-numeric: tabular-nums;
  white-space: nowrap }
.tile small { font-size: .95rem; font-weight: 400; color: var(--soft) }
.tile span { color: var(--soft); font-size: .88rem }
.tile.first { border-left: 4px solid var(--c0) }
.panels { display: grid; gap: .9rem; align-items: start; grid-template-columns: minmax(0, 1fr) }
@media (min-width: 44rem) { .panels { grid-template-columns: repeat(2, minmax(0, 1fr)) } }
@media (min-width: 64rem) { .panels { grid-template-columns: repeat(3, minmax(0, 1fr)) } }
.panels > .lead { grid-column: 1 / -1 }
@media (min-width: 64rem) { .panels > .lead.beside { grid-column: auto; padding-right: 1rem } }
figure { margin: 0; padding: .8rem .9rem .5rem; min-width: 0 }
figcaption { margin-bottom: .5rem; line-height: 1.35; overflow-wrap: anywhere }
figcaption b { display: block }
figcaption div { color: var(--soft); font-size: .88rem }
.map { display: grid; gap: .9rem; align-items: start; grid-template-columns: minmax(0, 1fr) }
@media (min-width: 64rem) { .map { grid-template-columns: minmax(0, 1.2fr) minmax(0, 1fr) }
  .map.big { grid-template-columns: minmax(0, 2.4fr) minmax(0, 1fr) } }
.map.seeds { margin-top: .9rem } .map.seeds .card { max-height: 27rem; overflow: auto }
.map.seeds th { position: sticky; top: -.5rem; background: var(--card) }
.map.seeds :is(td, th):first-child { position: sticky; left: -1rem; background: var(--card) }
.map.seeds th:first-child { z-index: 1 } .map.seeds td { white-space: nowrap }
.map.seeds td:first-child:not(.number) { white-space: normal }
@media (max-width: 44rem) { .map.seeds td:first-child:not(.number) { min-width: 8.4rem;
  overflow-wrap: anywhere; font-size: .82rem } }
@media (min-width: 64rem) { .map.seeds { grid-template-columns: minmax(0, 1fr) minmax(0, 2.06fr) } }
.scroll { overflow-x: auto } .scroll svg { max-width: 32rem; margin: 0 auto }
.big .scroll svg { max-width: none; min-width: 46rem }
.key.right { color: var(--right); fill: none } .key.wrong { color: var(--wrong) }
h2.task { font-size: 1.6rem; border-top: 3px solid var(--line); padding-top: 1.5rem;
  margin-top: 3.5rem } h2.task + section { margin-top: 0 }
header + main > h2.task:first-child { margin-top: 1rem }
svg { display: block; width: 100%; height: auto }
svg text { fill: var(--soft); font-size: 12px } svg text.class { font-size: 11px }
svg text.cell { fill: var(--ink) } svg text:is(.strong, .half) { font-weight: 600 }
svg text.strong { fill: var(--on) } svg text.half { fill: var(--half) }
.axis { stroke: var(--soft) } .grid { stroke: var(--grid) }
.ideal { stroke: var(--soft); stroke-dasharray: 3 4 }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round }
.faint { fill: none; stroke: var(--c); stroke-width: 1; opacity: .3 }
.whisker { fill: none; stroke: var(--c); stroke-width: 1.6; opacity: .55 }
.band { fill: var(--c); opacity: .13; stroke: none }
.dot { fill: var(--c); stroke: var(--card); stroke-width: 1 }
.dot.hollow { fill: var(--card); stroke: var(--c); stroke-width: 1.8 }
.bar { fill: var(--bar) } .right { fill: var(--right) } .wrong { fill: var(--wrong) }
rect:hover, .dot:hover { stroke: var(--ink); stroke-width: 1.5 }
.frame { fill: none; stroke: var(--line) }
.s0 { --c: var(--c0) } .s1 { --c: var(--c1) } .s2 { --c: var(--c2) } .s3 { --c: var(--c3) }
.s4 { --c: var(--c4) } .s5 { --c: var(--c5) } .s6 { --c: var(--c6) } .s7 { --c: var(--c7) }
ul { padding-left: 1.2rem; max-width: 52rem; margin: .3rem 0 } li { margin: .2rem 0 }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .2rem 0 .5rem; padding: 0;
  list-style: none; font-size: .92rem; color: var(--ink) }
.legend li { overflow-wrap: anywhere; padding-left: calc(34px + .45rem);
  text-indent: calc(-34px - .45rem) }
.swatch { display: inline-block; width: 34px; height: 12px; margin-right: .45rem;
  vertical-align: baseline; flex: none }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { font-weight: 600; color: var(--soft); font-size: .88rem; vertical-align: bottom }
th, td { text-align: left; padding: .38rem 1rem .38rem 0; border-bottom: 1px solid var(--line) }
td { vertical-align: top; overflow-wrap: break-word } tr:last-child td { border-bottom: 0 }
td.number, th.number { text-align: right } td.number { white-space: nowrap }
.long { overflow-wrap: anywhere }
td:last-child, th:last-child { padding-right: 0 }
details { padding: .5rem 1rem; margin: .6rem 0 }
summary { cursor: pointer; font-weight: 600 }
.note { border-left: 4px solid var(--c1); padding-left: .8rem; margin-top: .8rem }
.hint { color: var(--soft); font-size: .88rem; margin: .4rem 0 0 }
@media (min-width: 50rem) { .hint { display: none } }
@media (max-width: 44rem) { body { padding-top: 1rem }
  .stacked, .stacked tbody { display: block } .stacked td > * { min-width: 0 }
  .stacked thead { display: none } .stacked tr { display: block; padding: .4rem 0 }
  .stacked tr + tr { border-top: 1px solid var(--line) }
  .stacked td { display: flex; justify-content: space-between; gap: 1rem; border: 0;
    padding: .15rem 0; overflow-wrap: anywhere }
  .stacked td::before { content: attr(data-name); color: var(--soft); font-weight: 400;
    min-width: 6.5rem; max-width: 55%; text-align: left; overflow-wrap: anywhere }
  .stacked td:first-child { font-weight: 600 } .stacked td:first-child::before { content: none }
  th, td { padding-right: .6rem } td.number { white-space: normal } h1 { font-size: 1.55rem } }
@media print { body { background: none } figure, .tile, .card { break-inside: avoid } }
"""
