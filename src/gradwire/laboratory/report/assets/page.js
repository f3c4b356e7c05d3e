// Draws the page's pictures from the JSON that they carry. No library, and every text goes in as text, never as HTML.
"use strict";
(() => {
  const NARROW = 600, LINE = 16;
  const paper = document.createElement("canvas").getContext("2d");

  function element(name, attributes = {}, text) {
    const made = attributes.html ? document.createElement(name) : document.createElementNS(document.querySelector("svg").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key !== "html" && value !== undefined) made.setAttribute(key, value);
    }
    if (text !== undefined) made.textContent = text;
    return made;
  }
  const tag = (name, attributes, text) => element(name, { html: true, ...attributes }, text);
  function wide(text, size = 13, weight = 400) {
    paper.font = `${weight} ${size}px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif`;
    return paper.measureText(text).width;
  }
  const widest = (texts, size) => Math.max(0, ...texts.map((t) => wide(t, size)));

  function placer(axis, from, to) {
    const turn = axis.log ? Math.log : (v) => v;
    const [low, high] = [turn(axis.low), turn(axis.high)];
    return (value) => from + ((turn(value) - low) / (high - low)) * (to - from);
  }

  // Places at least `gap` apart, near those wanted, inside [low, high]; null where there is no room.
  function spread(wanted, gap, low, high) {
    if ((wanted.length - 1) * gap > high - low) return null;
    const clamp = ([middle, count]) => {
      const half = ((count - 1) / 2) * gap;
      return [Math.min(Math.max(middle, low + half), high - half), count];
    };
    const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
    const blocks = [];
    for (const i of order) {
      blocks.push(clamp([wanted[i], 1]));
      for (let n = blocks.length; n > 1; n = blocks.length) {
        const [a, b] = [blocks[n - 2], blocks[n - 1]];
        if (b[0] - a[0] >= ((a[1] + b[1]) / 2) * gap) break;
        blocks.splice(n - 2, 2, clamp([(a[0] * a[1] + b[0] * b[1]) / (a[1] + b[1]), a[1] + b[1]]));
      }
    }
    const places = blocks.flatMap(([middle, n]) => Array.from({ length: n }, (_, i) => middle + (i - (n - 1) / 2) * gap));
    const found = [];
    order.forEach((index, n) => (found[index] = places[n]));
    return found;
  }

  const MARKS = [
    (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
    (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
    (r) => `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0z`,
    (r) => `M0 ${-1.2 * r}L${1.2 * r} ${r}H${-1.2 * r}z`,
    (r) => `M0 ${1.2 * r}L${1.2 * r} ${-r}H${-1.2 * r}z`,
    (r) => `M${-r / 2} ${-1.2 * r}h${r}v${0.7 * r}h${0.7 * r}v${r}h${-0.7 * r}v${0.7 * r}h${-r}v${-0.7 * r}h${-0.7 * r}v${-r}h${0.7 * r}z`,
    (r) => `M${-r} ${-0.4 * r}L${-0.4 * r} ${-r}L0 ${-0.6 * r}L${0.4 * r} ${-r}L${r} ${-0.4 * r}L${0.6 * r} 0L${r} ${0.4 * r}L${0.4 * r} ${r}L0 ${0.6 * r}L${-0.4 * r} ${r}L${-r} ${0.4 * r}L${-0.6 * r} 0z`,
  ];
  const colour = (s) => (s.role === "codec" ? `var(--c${s.hue})` : s.role === "baseline" ? "var(--ink)" : "var(--muted)");
  const marker = (s, x, y, r = 4) =>
    element("path", { d: MARKS[s.mark % MARKS.length](r), transform: `translate(${x} ${y})`, fill: colour(s) });

  const over = (colour, percent) => `color-mix(in srgb, ${colour} ${percent}%, var(--ground))`;
  const shaded = (shade) => over(`var(--${shade < 0 ? "bad" : "good"})`, Math.round(Math.abs(shade) * 70));
  function tint(name, hollow) {
    const mixed = over(name.hue === null ? "var(--muted)" : `var(--c${name.hue})`, name.percent);
    return hollow ? `fill:var(--ground);stroke:${mixed};stroke-width:2.5` : `fill:${mixed}`;
  }

  function sample(s, kind) {
    const svg = element("svg", { width: 22, height: 12, "aria-hidden": "true" });
    const style = kind === "bars" ? `fill:var(--p${s.hue})` : kind === "step" ? `fill:${shaded(s.shade)}` : kind === "heat" ? tint(s) : "";
    if (style) svg.append(element("rect", { x: 4.5, y: 0.5, width: 13, height: 11, stroke: "var(--muted)", "stroke-width": 0.5, style }));
    else {
      const dash = s.role === "baseline" ? s.dash : undefined;
      if (!s.points) svg.append(element("path", { d: "M0 6H22", stroke: colour(s), "stroke-width": 2, "stroke-dasharray": dash }));
      if (s.role === "codec") svg.append(marker(s, 11, 6));
    }
    return svg;
  }

  class Picture {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.dataset.view);
      this.canvas = figure.querySelector(".canvas");
      this.items = this.data.series || this.data.parts || this.data.names;
      this.hidden = new Set();
      this.tip = tag("div", { class: "tip", hidden: "", role: "status" });
      this.canvas.append(this.tip);
      figure.querySelector("details").open = false;
      this.legend();
      const save = tag("button", { type: "button" }, "Save as SVG");
      save.addEventListener("click", () => this.save());
      const tools = tag("div", { class: "tools" });
      tools.append(save);
      figure.querySelector("details").before(tools);
      this.canvas.addEventListener("pointerleave", () => this.leave());
    }

    legend() {
      const host = this.figure.querySelector(".legend"), { kind, y, label, steps, names } = this.data;
      if (kind === "heat") host.append(tag("span", {}, `rows: ${y} · ${names.length ? "number" : "colour"}: ${label}`));
      for (const [shade, text] of steps || []) {
        const entry = tag("span");
        entry.append(sample({ shade }, "step"), text);
        host.append(entry);
      }
      this.items.forEach((item, n) => {
        const button = tag("button", { type: "button", "aria-pressed": "true", title: item.note || "hide or show" });
        button.append(sample(item, kind), tag("span", {}, item.label));
        button.addEventListener("click", () => {
          if (!this.hidden.delete(n)) this.hidden.add(n);
          button.setAttribute("aria-pressed", String(!this.hidden.has(n)));
          this.draw();
        });
        for (const [event, on] of [["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]]) {
          button.addEventListener(event, () => this.fade(on ? n : -1));
        }
        host.append(button);
      });
    }

    fade(only) {
      for (const group of this.svg ? this.svg.querySelectorAll("[data-n]") : []) {
        group.classList.toggle("faded", only >= 0 && !this.hidden.has(only) && Number(group.dataset.n) !== only);
      }
    }

    draw(width = this.canvas.clientWidth) {
      if (!width) return;
      this.width = width;
      this.narrow = width < NARROW;
      this.svg = element("svg", { class: "picture-svg", tabindex: 0, role: "img" });
      this.svg.setAttribute("aria-label", `${this.data.title}. Arrow keys read values; the numbers follow as a table.`);
      this.canvas.querySelector("svg").replaceWith(this.svg);
      const height = this[this.data.kind]();
      this.svg.setAttribute("viewBox", `0 0 ${Math.round(width)} ${Math.ceil(height)}`);
      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("blur", () => this.leave());
      this.leave();
    }

    add(name, attributes, text, host = this.svg) {
      const made = element(name, attributes, text);
      host.append(made);
      return made;
    }

    label(x, y, text, more = {}, host = this.svg) {
      return this.add("text", { x, y, ...more }, text, host);
    }

    // ---------------------------------------------------------------- curves and points

    chart() {
      const { x, y, series, marks } = this.data;
      const shown = series.map((s, n) => [s, n]).filter(([, n]) => !this.hidden.has(n));
      const left = widest(y.ticks.map((t) => t[1])) + 10;
      const column = widest(series.map((s) => s.label)) + 30;  // of names where curves end, if there is room
      const direct = !this.narrow && !this.data.cloud && column <= this.width * 0.35, right = direct ? column : 14;
      const plot = this.narrow ? 260 : Math.min(420, Math.max(300, this.width * 0.42));
      const stems = this.stems(marks, (v) => placer(x, left, this.width - right)(v));
      const top = 28 + stems.rows * LINE;
      const bottom = top + plot;
      this.px = placer(x, left, this.width - right);
      this.py = placer(y, bottom, top);
      this.frame = { left, right: this.width - right, top, bottom };
      this.label(0, 14, y.label, { class: "muted" });
      for (const [value, text] of y.ticks) {
        const at = this.py(value);
        this.add("path", { class: "grid", d: `M${left} ${at}H${this.width - right}` });
        this.label(left - 8, at + 4, text, { "text-anchor": "end" });
      }
      this.add("path", { class: "base", d: `M${left} ${bottom}H${this.width - right}` });
      this.along(x.ticks, bottom + 19);
      this.label((left + this.width - right) / 2, bottom + 40, x.label, { class: "muted", "text-anchor": "middle" });
      for (const { at, from, row, text } of stems.list) {
        const up = top - 4 - row * LINE;
        this.add("path", { class: "stem", d: `M${at} ${bottom}V${up}` });
        this.label(from, up - 3, text, { class: "muted small" });
      }
      for (const [s, n] of shown) this.curve(s, n);
      if (direct) this.ends(shown);
      this.cursor = this.add("g", {});
      this.svg.addEventListener("pointermove", (event) => this.point(event));
      return bottom + 48;
    }

    stems(marks, place) {
      const list = marks.map(([value, text]) => {
        const at = place(value), length = wide(text, 11);
        return { at, text, length, from: Math.max(0, at + length < this.width ? at : at - length) };
      });
      const reached = [];
      for (const stem of [...list].sort((a, b) => b.from - a.from)) {
        stem.row = reached.findIndex((taken) => stem.from + stem.length + 8 <= taken);
        if (stem.row < 0) stem.row = reached.length;
        reached[stem.row] = stem.from;
      }
      return { list, rows: reached.length };
    }

    along(ticks, y) {
      let end = -Infinity;
      for (const [value, text] of ticks) {
        const length = wide(text), at = Math.min(Math.max(this.px(value), length / 2), this.width - length / 2);
        if (at - length / 2 < end + 8) continue;
        this.label(at, y, text, { "text-anchor": "middle" });
        end = at + length / 2;
      }
    }

    curve(s, n) {
      const group = this.add("g", { class: s.role, "data-n": n });
      let path = "";
      s.ys.forEach((value, i) => {
        if (value === null) return;
        path += `${i && s.ys[i - 1] !== null ? "L" : "M"}${this.px(s.xs[i]).toFixed(1)} ${this.py(value).toFixed(1)}`;
      });
      const dash = s.role === "baseline" ? s.dash : undefined;
      if (!s.points) this.add("path", { class: "curve", d: path, stroke: colour(s), "stroke-dasharray": dash }, undefined, group);
      if (s.points || (s.role === "codec" && s.xs.length <= 12)) {
        s.ys.forEach((value, i) => value !== null && group.append(marker(s, this.px(s.xs[i]), this.py(value))));
      }
    }

    ends(shown) {
      const found = shown.map(([s, n]) => {
        let last = -1;
        s.ys.forEach((value, i) => (value !== null && (last < 0 || s.xs[i] > s.xs[last]) ? (last = i) : 0));
        return { s, n, last };
      }).filter((f) => f.last >= 0);
      const { top, bottom, right } = this.frame;
      const places = spread(found.map(({ s, last }) => this.py(s.ys[last])), LINE, top, bottom);
      if (!places) return;
      found.forEach(({ s, n, last }, i) => {
        const group = this.add("g", { "data-n": n });
        const d = `M${this.px(s.xs[last]) + 5} ${this.py(s.ys[last])}L${right + 16} ${places[i]}`;
        this.add("path", { class: "lead", d, stroke: colour(s) }, undefined, group);
        const kind = s.role === "baseline" ? "bold" : "";
        this.label(right + 20, places[i] + 4, s.label, { class: kind, style: `fill:${colour(s)}` }, group);
      });
    }

    point(event) {
      const box = this.svg.getBoundingClientRect();
      const scale = this.width / box.width;
      const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      if (this.data.cloud) return this.nearest(x, y);
      const near = (at) => Math.abs(this.px(at[0]) - x);
      this.read(this.data.at.reduce((best, at, i, all) => (near(at) < near(all[best]) ? i : best), 0));
    }

    nearest(x, y) {
      let best = null;
      this.dots().forEach((dot) => {
        const distance = Math.hypot(dot.x - x, dot.y - y);
        if (!best || distance < best.distance) best = { ...dot, distance };
      });
      if (best && best.distance < 40) this.dot(best);
      else this.leave();
    }

    dots() {
      return this.data.series.flatMap((s, n) =>
        this.hidden.has(n) || !s.points ? [] : s.xs.map((x, i) => ({ s, i, x: this.px(x), y: this.py(s.ys[i]) }))
      ).filter((dot) => dot.s.ys[dot.i] !== null).sort((a, b) => a.x - b.x);
    }

    dot({ s, i, x, y }) {
      this.cursor.replaceChildren(element("circle", { cx: x, cy: y, r: 8, class: "cursor", fill: "none" }));
      const { x: across, y: up } = this.data;
      const title = s.names.length ? `${s.label}, ${s.names[i]}` : s.label;
      this.tell(x, y, title, [[null, across.label, s.at[i]], [null, up.label, s.text[i]]]);
    }

    read(index) {
      this.now = index;
      const [value, text] = this.data.at[index], x = this.px(value), rows = [];
      this.cursor.replaceChildren(element("path", { class: "cursor", d: `M${x} ${this.frame.top}V${this.frame.bottom}` }));
      this.data.series.forEach((s, n) => {
        const i = this.hidden.has(n) ? -1 : s.xs.indexOf(value);
        if (i < 0) return;
        rows.push([s, s.label, s.text[i], s.ys[i] ?? -Infinity]);
        if (s.ys[i] !== null) this.cursor.append(element("circle", { cx: x, cy: this.py(s.ys[i]), r: 4, fill: colour(s) }));
      });
      this.tell(x, this.frame.top, text, rows.sort((a, b) => b[3] - a[3]));
    }

    // ---------------------------------------------------------------- heat maps

    heat() {
      const { xs, ys, shades, values, names, whose } = this.data;
      const over = this.narrow && widest(ys) > this.width * 0.2 ? 18 : 0;  // names of rows above them
      const left = over ? 0 : Math.min(widest(ys) + 10, this.width * 0.36), cell = (this.width - left) / xs.length;
      const fits = (t, size) => wide(t, size) < cell - 6;
      const two = names.length > 0 && names.every((n) => fits(n.label, 11));
      const height = two ? 44 : 30, row = height + over, top = 4;
      this.cells = ys.map((name, r) => {
        if (over) this.clipped(0, top + r * row + 13, name, this.width);
        else this.clipped(left - 10, top + r * row + row / 2 + 4, name, left - 10, { "text-anchor": "end" });
        return xs.map((_, c) => {
          const n = names.length ? whose[r][c] : null, shade = shades[r][c], [x, y] = [left + c * cell, top + r * row + over];
          const gap = shade === null || this.hidden.has(n), who = n === null ? null : names[n];
          const group = this.add("g", n === null ? {} : { "data-n": n });
          const style = gap ? undefined : who ? tint(who, shade < 0) : `fill:${shaded(shade)}`;
          const box = { x: x + 2, y: y + 2, width: cell - 4, height: height - 4, class: gap ? "gap" : undefined, style };
          const rect = this.add("rect", box, undefined, group), { here } = this.data;
          if (here && here[0] === r && here[1] === c) this.add("rect", { ...box, class: "here", style: undefined }, undefined, group);
          const below = two && who && !gap ? who.label : "", middle = { "text-anchor": "middle" };
          const kind = !fits(values[r][c], 13) ? "small" : below ? "bold" : undefined;
          if (fits(values[r][c], 11)) this.label(x + cell / 2, y + height / 2 + (below ? -3 : 4), values[r][c], { ...middle, class: kind }, group);
          if (below) this.label(x + cell / 2, y + height / 2 + 13, below, { ...middle, class: "small" }, group);
          group.addEventListener("pointerenter", () => this.choose(r, c));
          return rect;
        });
      });
      const bottom = top + ys.length * row;
      this.px = (c) => left + (c + 0.5) * cell;
      this.along(xs.map((t, c) => [c, t]), bottom + 18);
      this.label(left + (this.width - left) / 2, bottom + 40, this.data.x, { class: "muted", "text-anchor": "middle" });
      return bottom + 48;
    }

    clipped(x, y, text, room, more, host) {
      let shown = text;
      while (shown.length > 4 && wide(shown, 13, more && more.class === "bold" ? 650 : 400) > room) shown = `${shown.slice(0, -2)}…`;
      const label = this.label(x, y, shown, more, host);
      if (shown !== text) label.append(element("title", {}, text));
    }

    choose(r, c) {
      this.leave();
      [this.row, this.now] = [r, c];
      const rect = this.cells[r][c], { xs, ys, values, names, whose, label } = this.data;
      rect.classList.add("chosen");
      const who = names.length && whose[r][c] !== null ? names[whose[r][c]] : null, rows = [[null, label, values[r][c]]];
      if (who) rows.unshift([who, who.label, ""]);
      const at = ["x", "y", "width"].map((name) => Number(rect.getAttribute(name)));
      this.tell(at[0] + at[2] / 2, at[1], `${ys[r]}, ${xs[c]}`, rows);
    }

    // ---------------------------------------------------------------- bars

    bars() {
      const { axis, groups, parts, ends, roles } = this.data;
      const shown = parts.map((p, n) => [p, n]).filter(([, n]) => !this.hidden.has(n));
      const left = this.narrow ? 0 : widest(groups) + 12, right = widest(ends) + 14;
      const over = this.narrow ? 17 : 0, row = 26 + over, top = 8, bottom = top + groups.length * row;
      this.px = placer(axis, left, this.width - right);
      for (const [value] of axis.ticks) this.add("path", { class: "grid", d: `M${this.px(value)} ${top}V${bottom}` });
      this.cells = groups.map((name, g) => {
        const y = top + g * row, group = this.add("g", {});
        const kind = roles[g] === "baseline" ? "bold" : roles[g] === "reference" ? "muted" : "";
        if (this.narrow) this.clipped(0, y + 14, name, this.width, { class: kind }, group);
        else this.label(left - 9, y + 17, name, { class: kind, "text-anchor": "end" }, group);
        let start = 0;
        for (const [part, n] of shown) {
          const box = { x: this.px(start), y: y + 4 + over, width: Math.max(0, this.px(part.values[g]) - this.px(0)), height: 18 };
          const bar = this.add("g", { "data-n": n }, undefined, group);
          this.add("rect", { ...box, fill: `var(--p${part.hue})` }, undefined, bar);
          start += part.values[g];
        }
        if (ends.length) this.label(this.px(start) + 6, y + 17 + over, ends[g], {}, group);
        const target = this.add("rect", { x: 0, y, width: this.width, height: row, fill: "transparent" }, undefined, group);
        group.addEventListener("pointerenter", () => this.bar(g));
        return target;
      });
      this.along(axis.ticks, bottom + 18);
      this.label((left + this.width - right) / 2, bottom + 40, axis.label, { class: "muted", "text-anchor": "middle" });
      return bottom + 48;
    }

    bar(g) {
      this.leave();
      this.now = g;
      const rows = this.data.parts.filter((_, n) => !this.hidden.has(n)).map((p) => [p, p.label, p.text[g]]);
      if (this.data.ends.length) rows.push([null, this.data.axis.label, this.data.ends[g]]);
      const y = Number(this.cells[g].getAttribute("y")) + Number(this.cells[g].getAttribute("height"));
      this.tell(this.width * 0.7, y, this.data.groups[g], rows);
    }

    // ---------------------------------------------------------------- reading values

    key(event) {
      const step = { ArrowRight: [0, 1], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowUp: [-1, 0] }[event.key];
      if (event.key === "Escape") return this.leave();
      if (!step) return;
      event.preventDefault();
      const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
      if (this.data.kind === "heat") {
        const [r, c] = this.now < 0 ? [0, 0] : [this.row + step[0], this.now + step[1]];
        return this.choose(within(r, this.data.ys.length), within(c, this.data.xs.length));
      }
      const dots = this.data.cloud ? this.dots() : null;
      const count = (dots || this.data.at || this.data.groups).length;
      const next = within(this.now < 0 ? 0 : this.now + step[0] + step[1], count);
      if (dots && dots.length) this.dot(dots[next]);
      else if (!dots) this.data.kind === "bars" ? this.bar(next) : this.read(next);
      this.now = next;
    }

    tell(x, y, title, rows) {
      this.tip.replaceChildren(tag("b", {}, title));
      for (const [item, name, value] of rows) {
        const line = tag("div"), label = tag("span", {}, name);
        if (item) label.prepend(sample(item, this.data.kind), " ");
        line.append(label, tag("span", {}, value));
        this.tip.append(line);
        if (item && item.note && rows.length < 4) this.tip.append(tag("small", {}, item.note));
      }
      this.tip.hidden = false;
      const box = this.canvas.getBoundingClientRect(), scale = box.width / this.width, own = this.tip.getBoundingClientRect();
      const beside = x * scale + 14 + own.width < box.width ? x * scale + 14 : x * scale - 14 - own.width;
      this.tip.style.left = `${Math.max(0, Math.min(beside, box.width - own.width))}px`;
      this.tip.style.top = `${Math.max(0, y * scale + 8)}px`;
    }

    leave() {
      this.now = -1;
      this.tip.hidden = true;
      if (this.cursor) this.cursor.replaceChildren();
      for (const rect of this.svg ? this.svg.querySelectorAll(".chosen") : []) rect.classList.remove("chosen");
    }

    save() {
      const copy = this.svg.cloneNode(true);
      let [width, height] = copy.getAttribute("viewBox").split(" ").slice(2).map(Number);
      this.figure.querySelectorAll(".legend > *").forEach((entry) => {  // what colours mean belongs to the picture
        const line = element("g", { transform: `translate(0 ${(height += 20) - 16})` });
        const patch = entry.querySelector("svg");
        if (patch) line.append(...patch.cloneNode(true).childNodes);
        line.append(element("text", { x: patch ? 28 : 0, y: 10 }, entry.textContent));
        copy.append(line);
      });
      copy.setAttribute("viewBox", `-12 -44 ${width + 24} ${height + 56}`);
      copy.setAttribute("width", width + 24);
      copy.setAttribute("height", height + 56);
      copy.append(element("text", { x: 0, y: -18, style: "font-size:18px;font-weight:650" }, this.data.title));
      copy.prepend(element("style", {}, document.getElementById("picture-style").textContent.replace(":root", ".picture-svg")));
      const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
      const link = tag("a", { href: url, download: `${this.data.title.replace(/[^\w.-]+/g, "_")}.svg` });
      link.click();
      URL.revokeObjectURL(url);
    }
  }

  // One of several items, chosen by its values. Each select offers what there is under those before it.
  function choice(host, show) {
    const keys = JSON.parse(host.dataset.keys);
    const items = [...host.children].map((item) => ({ item, values: JSON.parse(item.dataset.values) }));
    const chosen = [...items[Number(host.dataset.start)].values];
    const bar = tag("div", { class: "selects" });
    const selects = keys.map((key, k) => {
      const label = tag("label", {}, key), select = tag("select");
      select.addEventListener("change", () => { chosen[k] = select.value; update(); show(); });
      label.append(select);
      bar.append(label);
      return select;
    });
    function update() {
      let left = items;
      selects.forEach((select, k) => {
        const options = [...new Set(left.map(({ values }) => values[k]))];
        if (!options.includes(chosen[k])) chosen[k] = options[0];
        select.replaceChildren(...options.map((value) => tag("option", { value }, value)));
        select.value = chosen[k];
        select.parentElement.hidden = options.length < 2;
        left = left.filter(({ values }) => values[k] === chosen[k]);
      });
      for (const { item } of items) item.classList.toggle("shown", item === left[0].item);
    }
    host.prepend(bar);
    update();
  }

  // Draws what can be seen; a picture that is chosen later is made then.
  const pictures = new WeakMap();
  function show(width) {
    for (const figure of document.querySelectorAll(".picture")) {
      const seen = !figure.closest(".fold:not([open])") && figure.querySelector(".canvas").clientWidth;
      if (!seen) continue;
      if (!pictures.has(figure)) pictures.set(figure, new Picture(figure));
      const picture = pictures.get(figure);
      if ((width || seen) !== picture.width) picture.draw(width);
    }
  }

  // Folded parts: the one that the address names is open; on paper all of them are.
  const folds = [...document.querySelectorAll(".fold")];
  function visit() {
    const named = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = named && named.querySelector(".fold");
    if (fold) fold.open = true;
  }
  let closed = [];

  for (const host of document.querySelectorAll(".choice")) choice(host, () => show());
  for (const fold of folds) fold.addEventListener("toggle", () => show());
  visit();
  show();
  window.gradwire = { show: () => show() };  // for pages that put in pictures later
  addEventListener("hashchange", visit);
  addEventListener("resize", () => show());
  addEventListener("beforeprint", () => {
    closed = folds.filter((fold) => !fold.open);
    for (const fold of closed) fold.open = true;
    show(680);
  });
  addEventListener("afterprint", () => {
    for (const fold of closed) fold.open = false;
    show();
  });
})();
