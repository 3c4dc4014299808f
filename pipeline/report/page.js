"use strict";
// What the page does when it is touched: tables that sort, a sequence along its bases, a contact map.
{
  const SVG = "http://www.w3.org/2000/svg";
  const collator = new Intl.Collator("en", { numeric: true });

  function bytes(base64) {
    const text = atob(base64);
    const found = new Uint8Array(text.length);
    for (let k = 0; k < text.length; k++) found[k] = text.charCodeAt(k);
    return found;
  }

  const floats = (base64) => new Float32Array(bytes(base64).buffer);
  const shown = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "not known");
  const between = (value, low, high) => Math.min(Math.max(value, low), high);
  const dataOf = (viewer) => JSON.parse(viewer.querySelector("script").textContent);

  // -- tables

  function valueOf(row, column) {
    const cell = row.cells[column];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return cell.textContent === "\u2013" ? null : cell.textContent;
  }

  function compare(one, other) {
    return typeof one === "number" && typeof other === "number" ? one - other : collator.compare(one, other);
  }

  function sortBy(table, column, descending) {
    const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, column), row]);
    const known = rows.filter(([value]) => value !== null);
    known.sort(([one], [other]) => (descending ? compare(other, one) : compare(one, other)));
    const missing = rows.filter(([value]) => value === null);
    table.tBodies[0].append(...[...known, ...missing].map(([, row]) => row));
  }

  function makeSortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const descending = before ? before === "ascending" : head.classList.contains("number");
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sortBy(table, column, descending);
      });
    });
  }

  // -- a sequence along its bases

  const STEP = 10; // width of a base; bars are two narrower
  const HEIGHT = 80; // of each row of bars
  const LETTERS = 18;
  const TRACK = 16;

  function shape(parent, name, attributes, text = "") {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    parent.append(element);
    return element;
  }

  /** Draws values as bars from zero, scaled so that all of them fill the height. */
  function bars(svg, values, top, kind) {
    const known = values.filter(Number.isFinite);
    const low = Math.min(0, ...known);
    const scale = HEIGHT / (Math.max(0, ...known) - low || 1);
    values.forEach((value, k) => {
      if (!Number.isFinite(value)) return;
      const place = { x: k * STEP + 1, y: top + HEIGHT - (Math.max(value, 0) - low) * scale };
      shape(svg, "rect", { ...place, width: STEP - 2, height: Math.abs(value) * scale, class: kind });
    });
  }

  function showSequences(viewer) {
    const data = dataOf(viewer);
    const [attention, effect] = [floats(data.attention), floats(data.effect)];
    const [rows, heads] = viewer.querySelectorAll("select");
    const [frame, readout] = [viewer.querySelector(".bars"), viewer.querySelector("output")];
    data.ids.forEach((id) => rows.add(new Option(id)));
    data.heads.forEach((head) => heads.add(new Option(head)));
    const svg = shape(frame, "svg", { tabindex: 0, role: "application" });
    svg.setAttribute("aria-label", "Attention and mutational effect; arrow keys move from base to base");
    let base = 0;
    let now = {};

    function chosen() {
      const [row, head] = [rows.selectedIndex, heads.selectedIndex];
      const letters = data.sequences[row];
      const part = (values, start) => [...values.subarray(start, start + letters.length)];
      return {
        letters,
        attention: part(attention, (head * data.ids.length + row) * data.size),
        effect: part(effect, row * data.size),
        sites: data.sites.filter((site) => site[0] === row),
      };
    }

    function drawSites(top) {
      const motifs = [...new Set(now.sites.map((site) => site[1]))].sort((a, b) => a - b);
      for (const [, motif, start, end, strand] of now.sites) {
        const y = top + motifs.indexOf(motif) * TRACK;
        const place = { x: start * STEP, y, width: (end - start) * STEP, height: TRACK - 2, class: "site" };
        shape(svg, "rect", place);
        const name = strand < 0 ? `\u2190 ${data.motifs[motif]}` : `${data.motifs[motif]} \u2192`;
        shape(svg, "text", { x: ((start + end) / 2) * STEP, y: y + 11, class: "name" }, name);
      }
      return motifs.length * TRACK;
    }

    function draw() {
      now = chosen();
      base = between(base, 0, now.letters.length - 1);
      svg.replaceChildren();
      now.mark = shape(svg, "rect", { y: 0, width: STEP, class: "here" });
      bars(svg, now.attention, 0, "attention");
      [...now.letters].forEach((letter, k) => {
        shape(svg, "text", { x: (k + 0.5) * STEP, y: HEIGHT + 13 }, letter);
      });
      const middle = HEIGHT + LETTERS + drawSites(HEIGHT + LETTERS);
      bars(svg, now.effect, middle, "effect");
      const [width, height] = [now.letters.length * STEP, middle + HEIGHT];
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("width", width);
      svg.setAttribute("height", height);
      now.mark.setAttribute("height", height);
      point(base);
    }

    function point(to) {
      base = between(to, 0, now.letters.length - 1);
      now.mark.setAttribute("x", base * STEP);
      const here = now.sites.filter((site) => site[2] <= base && base < site[3]);
      const names = here.map((site) => data.motifs[site[1]]).join(", ");
      readout.textContent =
        `${now.letters[base]} at ${base - data.origin} from ${data.from}: ` +
        `attention ${shown(now.attention[base])}, mutational effect ${shown(now.effect[base])}` +
        (names ? `; site of ${names}` : "");
    }

    function follow(event) {
      const box = svg.getBoundingClientRect();
      point(Math.floor(((event.clientX - box.left) / box.width) * now.letters.length));
    }

    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("keydown", (event) => {
      const last = now.letters.length - 1;
      const to = { ArrowLeft: base - 1, ArrowRight: base + 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      point(to);
      const x = base * STEP;
      if (x < frame.scrollLeft || x + STEP > frame.scrollLeft + frame.clientWidth) {
        frame.scrollLeft = x - frame.clientWidth / 2;
      }
    });
    rows.addEventListener("change", draw);
    heads.addEventListener("change", draw);
    draw();
  }

  // -- a contact map

  const pixel = (red, green, blue) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  const mixed = (low, high, share) => Math.round(low + (share * (high - low)) / 255);
  const shade = (_, k) => pixel(mixed(255, 8, k), mixed(255, 48, k), mixed(255, 107, k));
  const SHADES = Array.from({ length: 256 }, shade); // from white to dark blue
  const TRUTHS = [pixel(255, 255, 255), pixel(26, 34, 48), pixel(222, 222, 222)]; // as TOUCH
  const TOUCH = ["no true contact", "true contact", "truth not known"];

  function showMap(viewer) {
    performance.mark("contact map begins");
    const data = dataOf(viewer);
    const [scores, truth] = [floats(data.scores), data.truth === null ? null : bytes(data.truth)];
    const n = data.letters.length;
    const [canvas, readout] = [viewer.querySelector("canvas"), viewer.querySelector("output")];
    const whole = document.createElement("canvas");
    let cell = { i: 0, j: n - 1 };

    /** Place of the pair i < j among all pairs, row by row. */
    const placeOf = (i, j) => (i * (2 * n - i - 1)) / 2 + j - i - 1;

    function paint() {
      whole.width = whole.height = n;
      const image = new ImageData(n, n);
      const pixels = new Uint32Array(image.data.buffer);
      const range = data.high - data.low || 1;
      for (let i = 0; i < n; i++) {
        pixels[i * n + i] = TRUTHS[2];
        for (let j = i + 1; j < n; j++) {
          const pair = placeOf(i, j);
          const share = between((scores[pair] - data.low) / range, 0, 1);
          pixels[i * n + j] = SHADES[Math.round(255 * share)];
          pixels[j * n + i] = truth === null ? TRUTHS[0] : TRUTHS[truth[pair]];
        }
      }
      whole.getContext("2d").putImageData(image, 0, 0);
    }

    function show() {
      const size = canvas.width;
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = size < n;
      context.drawImage(whole, 0, 0, size, size);
      const line = Math.max(1, size / n);
      context.fillStyle = "rgb(217 119 6 / 35%)";
      context.fillRect(0, (cell.i / n) * size, size, line);
      context.fillRect((cell.j / n) * size, 0, line, size);
    }

    function nameOf(k) {
      const letter = data.letters[k];
      if (data.numbers === null) return letter + (k + 1);
      if (!data.numbers[k]) return `${letter} (not in the structure)`;
      return `${letter} ${data.chain ? `${data.chain}:` : ""}${data.numbers[k]}`;
    }

    function point(i, j) {
      cell = { i: between(i, 0, n - 1), j: between(j, 0, n - 1) };
      show();
      const [one, other] = [Math.min(cell.i, cell.j), Math.max(cell.i, cell.j)];
      const count = data.numbers === null ? "" : ` (residues ${one + 1} and ${other + 1} of the query)`;
      const names = `${nameOf(one)} and ${nameOf(other)}${count}`;
      if (one === other) {
        readout.textContent = `${nameOf(one)}: the diagonal`;
      } else {
        const pair = placeOf(one, other);
        const touch = truth === null ? "" : `, ${TOUCH[truth[pair]]}`;
        readout.textContent = `${names}: score ${shown(scores[pair])}${touch}`;
      }
    }

    function follow(event) {
      const box = canvas.getBoundingClientRect();
      const at = (place, start, size) => Math.floor(((place - start) / size) * n);
      point(at(event.clientY, box.top, box.height), at(event.clientX, box.left, box.width));
    }

    function fit() {
      const size = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
      if (size !== canvas.width || size !== canvas.height) canvas.width = canvas.height = size;
      show();
    }

    paint();
    performance.measure("contact map", "contact map begins");
    fit();
    point(cell.i, cell.j);
    new ResizeObserver(fit).observe(canvas);
    canvas.addEventListener("pointermove", follow);
    canvas.addEventListener("pointerdown", follow);
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      point(cell.i + step[0], cell.j + step[1]);
    });
  }

  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll(".viewer.sequences").forEach(showSequences);
  document.querySelectorAll(".viewer.map:has(canvas)").forEach(showMap);
}
