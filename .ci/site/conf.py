"""The settings with which Sphinx builds the pages of build.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import imagenet_prep

project = "imagenet-prep"
version = release = imagenet_prep.__version__
html_title = f"imagenet-prep {version}"
language = "en"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
# Behind the red name of a linked entry, #333300 leaves too little contrast.
html_theme_options = {"dark_css_variables": {"color-highlight-on-target": "#1a1a00"}}
html_show_copyright = html_show_sphinx = html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_favicon = "icon.svg"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
highlight_language = "text"

myst_heading_anchors = 6  # the anchors of forges

smartquotes = False  # --flag is not changed to a dash
default_role = "literal"  # docstrings set code in single backticks, as the documents do
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_preserve_defaults = True  # os.environ, without its content during the build
sys.executable = "python3"  # the default of `replicate`, without its path during the build
autodoc_member_order = "bysource"
autodoc_mock_imports = ["apache_beam"]  # not in the environment of the site
maximum_signature_line_length = 80
html_domain_indices = False
# Names in signatures are of many packages. A name that a page links to must have its entry.
nitpick_ignore_regex = [("py:(class|exc)", r".*")]


def setup(app):
    """Omits Python's docstrings of a named tuple's fields: docstrings of classes say more."""
    app.connect(
        "autodoc-skip-member",
        lambda _app, _what, _name, value, skip, _options: (
            skip or type(value).__name__ == "_tuplegetter"
        ),
    )
