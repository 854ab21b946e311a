// Images of messages: from the server that gives out the page, or from the page itself.

const ENDINGS = { "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif" };

// An image is unpacked once it is about to be seen.
const approaching = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    approaching.unobserve(entry.target);
    entry.target.dispatchEvent(new Event("approach"));
  }
}, { rootMargin: "400px" });

function pictureOf(image) {
  const name = `${image.sha256}.${ENDINGS[image.media_type]}`;
  const size = image.width ? `, ${image.width} × ${image.height}` : "";
  const picture = el("img", { class: "picture", alt: `image${size}`, title: `images/${name}${size}`, width: image.width || null, height: image.height || null, loading: "lazy" });
  const missing = () => picture.replaceWith(el("p", { class: "notice bad-text" }, `The image images/${name} is missing beside the traces file.`));
  picture.addEventListener("error", missing, { once: true });
  if (index.served) {
    picture.setAttribute("src", `images/${name}`);
    return picture;
  }
  picture.addEventListener("approach", async () => {
    if (!document.getElementById(`i-${name}`)) {
      await loaded;
      if (!document.getElementById(`i-${name}`)) return missing();
    }
    const url = URL.createObjectURL(new Blob([await inflate(`i-${name}`)], { type: image.media_type }));
    picture.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    picture.setAttribute("src", url);
  }, { once: true });
  approaching.observe(picture);
  return picture;
}
