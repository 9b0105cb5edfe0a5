// Lets xterm.js live under the page's content security policy, and keeps output from freezing the page.
//
// The policy gives `<style>` elements and `style` attributes no effect.  xterm.js writes its theme into
// <style> elements and colours into the attributes of <span>s: here these become a constructed style sheet
// and properties of `element.style`, both of which the policy allows.

/** xterm's class; undefined where the console was built without it.  The index loads it before this. */
export const Terminal = globalThis.Terminal;

const MOST_REPEATS = 1000; // more than a screen has lines or columns

/** Ignore what repeats a thing thousands of times; xterm.js would do it one by one, for hours. */
export function bounded(screen) {
  for (const final of "ILMSTZb") screen.parser.registerCsiHandler({ final }, ([count]) => count > MOST_REPEATS);
  return screen;
}

/** An element in the place of a <style>: its text is a style sheet of the document as long as it is there. */
function styleElement(make) {
  const sheet = new CSSStyleSheet();
  const element = make("template");
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text) });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}

function allowStyles() {
  const make = document.createElement.bind(document);
  document.createElement = (name, ...rest) => (name === "style" ? styleElement(make) : make(name, ...rest));
  HTMLSpanElement.prototype.setAttribute = function setAttribute(name, value) {
    if (name === "style") this.style.cssText = value;
    else Element.prototype.setAttribute.call(this, name, value);
  };
}

allowStyles();
