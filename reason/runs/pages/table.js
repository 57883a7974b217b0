const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

function make(tag, text = "", attributes = {}, space = null) {
  const element = space ? document.createElementNS(space, tag) : document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** The head and the rows of the page's table. A click on a column's name sorts by it, once more the other way round, a
    third time puts back the order they came in. `valueOf(line, key)` is what counts; numbers begin with the most. */
function sortable(columns, lines, valueOf) {
  const sort = {key: null, descending: false};

  /** Lines without a value come last, whichever way the others go; equals stay in the order they came in. */
  function compare(a, b) {
    const [x, y] = [valueOf(a, sort.key), valueOf(b, sort.key)];
    if (x == null || y == null) return (x == null) - (y == null) || a.place - b.place;
    const order = typeof x === "number" ? x - y : x.localeCompare(y, "en", {numeric: true});
    return (sort.descending ? -order : order) || a.place - b.place;
  }

  function sortBy({key, number}) {
    const first = Boolean(number);
    if (sort.key !== key) Object.assign(sort, {key, descending: first});
    else if (sort.descending === first) sort.descending = !first;
    else Object.assign(sort, {key: null, descending: false});
    arrange();
  }

  function arrange() {
    const order = sort.key ? [...lines].sort(compare) : lines;
    document.querySelector("tbody").replaceChildren(...order.map(({line}) => line));
    for (const head of document.querySelectorAll("th")) {
      const way = head.dataset.key !== sort.key ? "none" : sort.descending ? "descending" : "ascending";
      head.setAttribute("aria-sort", way);
    }
  }

  document.querySelector("thead tr").replaceChildren(...columns.map((column) => {
    const head = make("th", "", {scope: "col", "data-key": column.key, class: column.number ? "number" : ""});
    const button = make("button", column.name);
    button.addEventListener("click", () => sortBy(column));
    head.append(button);
    return head;
  }));
  arrange();
}

document.title = data.title;
$("title").textContent = data.title;
