// SPDX-License-Identifier: Apache-2.0

/* Lines over an axis, drawn at the width that there is, so that letters keep their size on a phone.

     lineChart(holder, {
       label,                            // for those who do not see it
       x: {log, print, title, least, binary},  // where it begins, if not with the first point;
                                               // whether its round numbers are powers of two
       y: {most, print, title},
       series: [{name, color, dashed, flat, points: [[x, y], ...], band: [[x, low, high], ...],
                 exact: [[x, y], ...]}],  // the line between the points, where it is known
       headroom: [[x, low, high], ...],  // shaded
       mark,                             // x of the cursor, or null
       pick(x),                          // the cursor was moved to one of the x there are
     })

   Series with the same points are drawn once and named together. */

const CHART = {letter: 7.6, line: 16, step: 6, gap: 5, enough: 26};

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  const ratio = least / power;
  return power * (ratio <= 1.0001 ? 1 : ratio <= 2.0001 ? 2 : ratio <= 5.0001 ? 5 : 10);
}

function scale(least, most, log, from, to) {
  const span = log ? Math.log(most / least) : most - least;
  return value => span <= 0 ? (from + to) / 2
    : from + (log ? Math.log(value / least) : value - least) / span * (to - from);
}

/* Round numbers from least to most: [value, whether there is room for its label]. */
function ticks(least, most, log, place, room, binary) {
  const values = [];
  if (!(most > least)) return [[least, true]];
  if (binary) {
    const step = 2 ** Math.ceil(Math.log2((most - least) / 7));
    for (let v = log ? 2 ** Math.ceil(Math.log2(least)) : Math.ceil(least / step) * step; v <= most; v = log ? 2 * v : v + step) values.push(v);
  } else if (log && most / least > 8) {
    for (let power = 10 ** Math.floor(Math.log10(least)); power <= most; power *= 10) {
      for (const part of [1, 2, 5]) values.push(power * part);
    }
  } else {
    const step = niceStep((most - least) / 7);
    for (let i = Math.ceil(least / step - 1e-9); i * step <= most * (1 + 1e-9); i++) values.push(i * step);
  }
  let last = -Infinity;
  return values.filter(v => v >= least * (1 - 1e-9) && v <= most * (1 + 1e-9)).map(value => {
    const named = place(value) - last >= room;
    if (named) last = place(value);
    return [value, named];
  });
}

function sameLine(a, b) {
  return a.flat === b.flat && a.points.length === b.points.length &&
    a.points.every((p, i) => p[0] === b.points[i][0] && p[1] === b.points[i][1]);
}

/* The first of each set of equal series, with all their names. */
function distinctLines(series) {
  const out = [];
  for (const one of series) {
    const same = out.find(o => sameLine(o, one));
    if (same) same.names.push(one.name);
    else out.push({...one, names: [one.name]});
  }
  return out;
}

/* ---- where a line's name stands clear of the others ---- */

function heightAt(pixels, x) {
  for (let i = 1; i < pixels.length; i++) {
    const [ax, ay] = pixels[i - 1];
    const [bx, by] = pixels[i];
    if (x >= ax && x <= bx) return bx > ax ? ay + (by - ay) * (x - ax) / (bx - ax) : by;
  }
  return null;
}

function whiteAround(box, pixels) {
  let least = CHART.enough;
  for (let x = box.left - 4; x <= box.right + 4; x += 4) {
    const y = heightAt(pixels, x);
    if (y === null) continue;
    least = Math.min(least, y < box.top ? box.top - y : y > box.bottom ? y - box.bottom : -CHART.enough);
  }
  return least;
}

function whiteBetween(a, b) {
  const across = Math.max(a.left - b.right, b.left - a.right);
  const down = Math.max(a.top - b.bottom, b.top - a.bottom);
  return across < 0 && down < 0 ? -CHART.enough : Math.min(CHART.enough, Math.max(across, down));
}

function placeLabel(lines, own, boxes, frame) {
  const width = own.text.length * CHART.letter;
  let best = null;
  for (let x = frame.left; x <= frame.right; x += CHART.step) {
    const y = heightAt(own.pixels, x);
    if (y === null) continue;
    for (const below of [false, true]) {
      const left = below ? x + CHART.gap : x - CHART.gap - width;
      const top = below ? y + CHART.gap : y - CHART.gap - CHART.line;
      const box = {left, top, right: left + width, bottom: top + CHART.line};
      if (left < frame.left + 2 || box.right > frame.right - 2 || top < frame.top ||
          box.bottom > frame.bottom - 2) continue;
      let white = CHART.enough;
      for (const line of lines) {
        const clear = whiteAround(box, line.pixels);
        if (line !== own) white = Math.min(white, clear);
        else if (clear < 1) white = Math.min(white, -CHART.enough / 2);
      }
      for (const other of boxes) white = Math.min(white, whiteBetween(box, other));
      if (best === null || white > best.white) best = {...box, white};
    }
  }
  return best;
}

/* ---- drawing ---- */

function drawAxes(frame, spec, placeX, placeY, range) {
  const parts = [];
  for (const [value] of ticks(range.low, range.y, false, placeY, -Infinity)) {
    const y = placeY(value);
    parts.push(svg('line', {class: value === 0 ? 'axis' : 'grid', x1: frame.left, x2: frame.right, y1: y, y2: y}),
      svg('text', {x: frame.left - 8, y: y + 5, 'text-anchor': 'end'}, spec.y.print(value)));
  }
  for (const [value, named] of ticks(range.least, range.most, spec.x.log, placeX, spec.x.room || 56, spec.x.binary)) {
    const x = placeX(value);
    parts.push(svg('line', {class: 'axis', x1: x, x2: x, y1: frame.bottom, y2: frame.bottom + (named ? 6 : 3)}));
    if (named) parts.push(svg('text', {x, y: frame.bottom + 22, 'text-anchor': 'middle'}, spec.x.print(value)));
  }
  parts.push(svg('text', {x: frame.right, y: frame.bottom + 42, 'text-anchor': 'end'}, spec.x.title));
  if (spec.y.title) parts.push(svg('text', {x: 0, y: 14}, spec.y.title));
  return parts;
}

function path(points) {
  return points.map(([x, y], i) => (i ? 'L' : 'M') + x.toFixed(1) + ' ' + y.toFixed(1)).join('');
}

function ribbon(points, placeX, placeY) {
  return path([...points.map(([x, , high]) => [placeX(x), placeY(high)]),
    ...points.slice().reverse().map(([x, low]) => [placeX(x), placeY(low)])]) + 'Z';
}

function drawLines(lines, placeX, placeY) {
  return lines.map(line => svg('g', {class: line.color},
    line.band && svg('path', {class: 'band', d: ribbon(line.band, placeX, placeY)}),
    svg('path', {class: 'line', d: path(line.pixels), 'stroke-dasharray': line.dashed ? '6 5' : null}),
    line.dots !== false && !line.flat && line.points.map(([x, y]) => svg('circle', {class: 'dot', cx: placeX(x), cy: placeY(y), r: 2.5}))));
}

/* "headroom" where there is most of it; the box of the word is kept free of other names. */
function nameHeadroom(headroom, placeX, placeY, boxes) {
  const [x, low, high] = headroom.reduce((a, b) => b[2] - b[1] > a[2] - a[1] ? b : a);
  if (placeY(low) - placeY(high) < 3 * CHART.line) return [];
  const half = 8 * CHART.letter / 2;
  const y = (placeY(low) + placeY(high)) / 2;
  boxes.push({left: placeX(x) - half, right: placeX(x) + half, top: y - CHART.line / 2, bottom: y + CHART.line / 2});
  return [svg('text', {class: 'cf', x: placeX(x), y: y + 5, 'text-anchor': 'middle'}, 'headroom')];
}

function drawLabels(lines, frame, boxes) {
  const parts = [];
  for (const line of lines) {
    const box = line.text && placeLabel(lines, line, boxes, frame);
    if (!box || box.white < 1) continue; /* screen readers get the color names too */
    boxes.push(box);
    parts.push(svg('text', {class: 'label ' + line.color, x: (box.left + box.right) / 2,
      y: box.bottom - 4, 'text-anchor': 'middle'}, line.text));
  }
  return parts;
}

function chartRange(spec) {
  const xs = spec.series.flatMap(s => s.flat ? [] : s.points.map(p => p[0]));
  const ys = spec.series.flatMap(s => [...s.points.map(p => p[1]), ...(s.band || []).map(p => p[2])]);
  const high = Math.max(1e-9, ...ys, ...(spec.headroom || []).map(p => p[2]));
  const low = Math.min(0, ...ys);
  const step = niceStep((high - low) / 6);
  return {low: Math.floor(low / step) * step, least: spec.x.least ?? (xs.length ? Math.min(...xs) : 1), most: xs.length ? Math.max(...xs) : 1,
    y: spec.y.most !== undefined ? Math.min(spec.y.most, Math.ceil(high * 1.01 / step) * step)
      : Math.ceil(high * 1.01 / step) * step,
    xs: [...new Set(xs)].sort((a, b) => a - b)};
}

function drawChart(holder, spec, width) {
  const height = Math.round(Math.max(spec.low || 290, Math.min(spec.high || 440, width * 0.62)));
  const range = chartRange(spec);
  const widest = Math.max(...ticks(range.low, range.y, false, v => v, -Infinity).map(t => spec.y.print(t[0]).length));
  const frame = {left: 12 + widest * 7.8, right: width - 14, top: spec.y.title ? 30 : 10, bottom: height - 50};
  const placeX = scale(range.least, range.most, spec.x.log, frame.left, frame.right);
  const placeY = scale(range.low, range.y, false, frame.bottom, frame.top);
  const lines = distinctLines(spec.series).map(one => ({...one, text: one.names.join(', '),
    pixels: one.flat ? [[frame.left, placeY(one.points[0][1])], [frame.right, placeY(one.points[0][1])]]
      : (one.exact || one.points).map(([x, y]) => [placeX(x), placeY(y)])}));
  const headroom = spec.headroom && spec.headroom.length > 1 ? spec.headroom : null;
  const boxes = [];
  const cursor = svg('g', {class: 'marks'});
  const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': spec.label},
    headroom && svg('path', {class: 'headroom', d: ribbon(headroom, placeX, placeY)}),
    drawAxes(frame, spec, placeX, placeY, range), cursor, drawLines(lines, placeX, placeY),
    headroom && nameHeadroom(headroom, placeX, placeY, boxes),
    spec.names !== false && drawLabels(lines, frame, boxes));
  holder.replaceChildren(picture);
  return {picture, cursor, frame, placeX, xs: range.xs};
}

function lineChart(holder, first) {
  let spec = first;
  let drawn = null;
  let width = 0;
  function mark(x) {
    spec.mark = x;
    drawn.cursor.replaceChildren(...(x === null || x === undefined ? [] : [svg('line', {class: 'cursor',
      x1: drawn.placeX(x), x2: drawn.placeX(x), y1: drawn.frame.top, y2: drawn.frame.bottom})]));
  }
  function pick(x) {
    mark(x);
    spec.pick(x);
  }
  function nearest(event) {
    const box = drawn.picture.getBoundingClientRect();
    const at = (event.clientX - box.left) * width / box.width;
    return drawn.xs.reduce((best, x) =>
      Math.abs(drawn.placeX(x) - at) < Math.abs(drawn.placeX(best) - at) ? x : best, drawn.xs[0]);
  }
  function draw() {
    width = Math.max(260, Math.floor(holder.clientWidth));
    drawn = drawChart(holder, spec, width);
    if (spec.pick) {
      for (const event of ['pointermove', 'pointerdown']) {
        drawn.picture.addEventListener(event, e => pick(nearest(e)));
      }
      mark(spec.mark);
    }
  }
  function step(event) {
    const by = {ArrowLeft: -1, ArrowRight: 1, Home: -1e6, End: 1e6}[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const at = drawn.xs.indexOf(spec.mark);
    pick(drawn.xs[Math.max(0, Math.min(drawn.xs.length - 1, (at < 0 ? 0 : at) + by))]);
  }
  holder.classList.add('chart');
  if (spec.pick) {
    holder.tabIndex = 0;
    holder.setAttribute('role', 'group');
    holder.setAttribute('aria-label', spec.label + '. Arrow keys move along the axis.');
    holder.addEventListener('keydown', step);
  }
  draw();
  new ResizeObserver(() => {
    if (Math.max(260, Math.floor(holder.clientWidth)) !== width) draw();
  }).observe(holder);
  return {set(next) { spec = next; draw(); }, mark};
}

/* A chart with its title, and a line below with the values at the cursor. */
function smallChart(holder, caption, spec) {
  const figure = h('div');
  const said = h('p', {class: 'said', 'aria-live': 'polite'}, '\u00a0');
  holder.append(h('div', null, h('p', {class: 'caption'}, caption), figure, said));
  lineChart(figure, {label: caption, low: 210, high: 260, mark: null, ...spec, pick: x => {
    const values = distinctLines(spec.series).map(line => [line, line.points.find(p => p[0] === x)]).filter(v => v[1]);
    said.replaceChildren(`${spec.x.say(x)}: `, values.map(([line, point]) =>
      `${line.names.join(', ')} ${(spec.y.say || spec.y.print)(point[1])}`).join('; '));
  }});
}

/* Bars side by side: [{name, value, note}], `name` of every so many below. */
function barChart(holder, spec) {
  function draw() {
    const width = Math.max(260, Math.floor(holder.clientWidth));
    if (width === draw.width) return;
    draw.width = width;
    const height = spec.height || 230;
    const high = Math.max(1e-9, ...spec.bars.map(b => b.value));
    const step = niceStep(high / 4);
    const most = Math.ceil(high / step - 1e-9) * step;
    const names = [];
    for (let v = 0; v <= most * 1.0001; v += step) names.push(v);
    const frame = {left: 12 + 7.8 * Math.max(...names.map(v => spec.print(v).length)), right: width - 4,
      top: 10, bottom: height - 48};
    const place = scale(0, most, false, frame.bottom, frame.top);
    const each = (frame.right - frame.left) / spec.bars.length;
    const every = Math.ceil((10 + 7.8 * Math.max(...spec.bars.map(b => b.name.length))) / each);
    holder.replaceChildren(svg('svg', {viewBox: `0 0 ${width} ${height}`, width, height, role: 'img',
      'aria-label': spec.label},
    names.map(v => [svg('line', {class: v ? 'grid' : 'axis', x1: frame.left, x2: frame.right, y1: place(v), y2: place(v)}),
      svg('text', {x: frame.left - 8, y: place(v) + 5, 'text-anchor': 'end'}, spec.print(v))]),
    spec.bars.map((bar, i) => {
      const x = frame.left + i * each;
      const middle = x + each / 2;
      return svg('g', {class: bar.color || 'c0'},
        svg('rect', {class: 'bar', x: x + Math.min(1, each * 0.1), width: Math.max(1, each - Math.min(2, each * 0.2)),
          y: place(bar.value), height: frame.bottom - place(bar.value)}, svg('title', null, bar.note)),
        ((i % every === 0 && middle + bar.name.length * 3.9 < width + 4) || bar.name === '\u2026') && svg('text', {x: middle, y: frame.bottom + 20, 'text-anchor': 'middle'}, bar.name));
    }),
    svg('text', {x: frame.right, y: frame.bottom + 42, 'text-anchor': 'end'}, spec.title)));
  }
  holder.classList.add('chart');
  draw();
  new ResizeObserver(draw).observe(holder);
}
