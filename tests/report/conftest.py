import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def browser(tmp_path_factory):
    """Chromium without a window; it notes every request and what it complains about."""
    webdriver = pytest.importorskip("selenium.webdriver")
    programs = [Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")]
    if not all(path.exists() for path in programs):
        pytest.skip("no chromium with chromedriver in /usr/bin")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    profile = tmp_path_factory.mktemp("profile")
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(programs[1])))
    yield driver
    driver.quit()
    shutil.rmtree(profile, ignore_errors=True)
