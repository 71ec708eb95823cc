// Tables of more than eight rows are sorted by the column whose head is clicked, or chosen by Enter.
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const body = table.tBodies[0];
  if (!body || body.rows.length <= 8) continue;
  const value = (row, column) => row.cells[column].textContent.trim();
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.tabIndex = 0;
    head.classList.add("sortable");
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down);
      const sign = down === "ascending" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1); // what has no figure stays last
        return sign * x.localeCompare(y, undefined, { numeric: true });
      });
      body.append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
}
