// Runs before the first paint, so that a stored choice of the theme does not flash.
{
  const chosen = localStorage.getItem("unimp-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
