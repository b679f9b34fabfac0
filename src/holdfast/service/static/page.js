// Dropping a file on a field of class "drop" chooses it, as the file dialog would.
"use strict";

for (const zone of document.querySelectorAll(".drop")) {
  const input = zone.querySelector("input[type=file]");
  const mark = (on) => (event) => {
    event.preventDefault();
    zone.classList.toggle("over", on);
  };
  zone.addEventListener("dragover", mark(true));
  zone.addEventListener("dragleave", mark(false));
  zone.addEventListener("drop", (event) => {
    mark(false)(event);
    if (event.dataTransfer.files.length === 1) {
      input.files = event.dataTransfer.files;
    }
  });
}
