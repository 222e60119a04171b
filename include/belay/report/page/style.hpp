// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a report page looks: light and dark as the reader's system says, one column on a narrow screen.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <string_view>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

inline constexpr std::string_view page_style = R"css(
:root{color-scheme:light dark;--back:#f5f6f7;--card:#fff;--ink:#1b1f24;--soft:#5a636e;--line:#e2e5e9;--bad:#c4302b;
--fine:#2b6cc4;
--c0:#2b6cc4;--c1:#d2601a;--c2:#2c8f5b;--c3:#8a56c2;--c4:#b88a00;--c5:#1591a5;--c6:#c8437f;--c7:#7b6a56;
--c8:#3a424b;--c9:#a9b1ba;--c10:#8fb4e3;--c11:#e9b48c;--c12:#9a3b3b;--c13:#93c47d;
--h0:#1d5fa8;--h1:#6ba3d6;--h2:#b9d5ec;--h3:#eceef0;--h4:#fbdcb5;--h5:#f5b06a;--h6:#e67e3c;--h7:#c84a26;
--h8:#8c1f1f}
@media (prefers-color-scheme:dark){:root{--back:#121519;--card:#1b2026;--ink:#e8ebee;--soft:#9ba5b0;--line:#2f363e;
--bad:#ff7b72;--fine:#6aa9f5;
--c0:#6aa9f5;--c1:#f0914e;--c2:#5cc48d;--c3:#b78ee8;--c4:#d9b13b;--c5:#4fc0d3;--c6:#ef82b0;--c7:#b7a48c;
--c8:#d3d9df;--c9:#66707b;--c10:#3f6fb5;--c11:#a8683a;--c12:#e06666;--c13:#7fae5f;
--h0:#79b8f5;--h1:#4583bd;--h2:#2d5478;--h3:#2b3138;--h4:#5f452c;--h5:#96602a;--h6:#cd7b33;--h7:#ee8f62;
--h8:#ffb3a3}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:14px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif;
overflow-wrap:anywhere}
main{max-width:1248px;margin:0 auto;padding:16px}
h1{font-size:22px;margin:0 0 4px}
h2{font-size:16px;margin:24px 0 8px}
p{margin:4px 0}
small,.note,.soft{color:var(--soft)}
.bad{color:var(--bad);white-space:pre-line}
.bad:empty{display:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(140px,1fr));gap:8px;margin:12px 0}
.tiles div,figure,.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;
margin:0;min-width:0}
.tiles b{display:block;font-size:18px;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:12px}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:12px}
.two+figure{margin-top:12px}
td.soft{min-width:11em}
figcaption{display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline;margin-bottom:8px}
.key,.tiles b,td{font-variant-numeric:tabular-nums}
.key{font-size:12px;color:var(--soft)}
.key::before{content:"";display:inline-block;width:14px;height:0;border-top:2px solid var(--c);
vertical-align:middle;margin-right:5px}
.key.area::before{height:10px;border:0;border-radius:2px;background:var(--c)}
.key.dashed::before{border-top-style:dashed}
.plot{position:relative;padding:9px 4px 22px 66px}
.plot svg{display:block;width:100%;height:190px;overflow:visible}
.plot.heat svg{height:clamp(96px,calc(var(--rows)*7px),420px)}
.plot.heat .grid{stroke:var(--card);stroke-width:2px}
.x,.y{position:absolute;font-size:11px;color:var(--soft);font-variant-numeric:tabular-nums}
.y{left:0;top:9px;bottom:22px;width:60px}
.y span{position:absolute;right:0;transform:translateY(-50%);white-space:nowrap}
.x{left:66px;right:4px;bottom:0;height:18px}
.x span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.x .start{transform:none}
.x .end{transform:translateX(-100%)}
path{fill:none;stroke:var(--c);vector-effect:non-scaling-stroke;stroke-linejoin:round}
path.grid{stroke:var(--line);stroke-width:1px}
path.line{stroke-width:1.7px}
path.dashed{stroke-dasharray:6 4}
path.dot{stroke-width:8px;stroke-linecap:round}
path.band{fill:var(--c);stroke:none;opacity:.2}
path.area{fill:var(--c);stroke:none;opacity:.8}
path.cell{stroke-width:1;vector-effect:none;stroke-linejoin:miter;shape-rendering:crispEdges}
path.lane{stroke:var(--line);stroke-width:1px}
path.mark{stroke-width:2px}
path.mark.bad{stroke:var(--bad)}
path.mark.fine{stroke:var(--fine)}
.lanes{display:grid;grid-template-columns:max-content 1fr;gap:6px 12px;align-items:center;background:var(--card);
border:1px solid var(--line);border-radius:8px;padding:10px 12px}
.lanes svg{display:block;width:100%;height:16px}
.schedules{display:grid;grid-template-columns:max-content 1fr;gap:10px 12px;align-items:center}
.plot.stages{padding:2px 4px 2px 66px}
.plot.stages .y{top:2px;bottom:2px}
.plot.timed{padding-bottom:22px}
.plot.timed .y{bottom:22px}
.plot.stages svg{height:clamp(48px,calc(var(--rows)*22px),352px)}
path.action{fill:var(--c);stroke:var(--card);stroke-width:1px}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:5px 12px;align-items:center}
.bars i{display:block;height:10px;border-radius:2px;background:var(--c0)}
.bars div{background:var(--line);border-radius:2px}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:3px 8px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;padding-left:6px}
td.n{white-space:nowrap}
th{color:var(--soft);font-weight:500}
pre{white-space:pre-wrap;margin:0;font:12.5px/1.5 ui-monospace,monospace}
@media (max-width:600px){main{padding:10px}.x .odd{display:none}.tiles{grid-template-columns:repeat(2,1fr)}
.plot,.plot.stages{padding-left:60px}.schedules{grid-template-columns:1fr}.x{left:60px}.y{width:54px}}
)css";

/// Classes of colours: what they mean to the rules above.
inline constexpr std::string_view page_colours =
    ".c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}"
    ".c6{--c:var(--c6)}.c7{--c:var(--c7)}.c8{--c:var(--c8)}.c9{--c:var(--c9)}"
    ".c10{--c:var(--c10)}.c11{--c:var(--c11)}.c12{--c:var(--c12)}.c13{--c:var(--c13)}"
    ".h0{--c:var(--h0)}.h1{--c:var(--h1)}.h2{--c:var(--h2)}.h3{--c:var(--h3)}.h4{--c:var(--h4)}.h5{--c:var(--h5)}"
    ".h6{--c:var(--h6)}.h7{--c:var(--h7)}.h8{--c:var(--h8)}\n";

}  // namespace belay::inline BELAY_ABI
