"""Settings: defaults, the environment, the engine's JSON, and errors."""

from __future__ import annotations

import unittest

from blockyard.settings import Settings, SettingsError


class Reading(unittest.TestCase):
    def test_nothing_given_is_the_defaults(self) -> None:
        self.assertEqual(Settings.read({}, {}), Settings())

    def test_json_comes_before_environment_before_default(self) -> None:
        environ = {"BLOCKYARD_SOCKET": "/env.sock", "BLOCKYARD_LOOKUP_WAIT_MS": "5"}
        settings = Settings.read({"socket": "/json.sock"}, environ)
        self.assertEqual(settings.socket, "/json.sock")
        self.assertEqual(settings.lookup_wait_ms, 5)
        self.assertEqual(settings.min_load_blocks, Settings().min_load_blocks)

    def test_a_misspelt_variable_is_warned_of_once(self) -> None:
        with self.assertLogs("blockyard.settings", "WARNING") as caught:
            Settings.read({}, {"BLOCKYARD_SOKET": "/x"})
            Settings.read({}, {"BLOCKYARD_SOKET": "/x"})
        self.assertEqual(len(caught.records), 1)
        self.assertIn("BLOCKYARD_SOKET is not a setting; known: BLOCKYARD_", caught.output[0])

    def test_variables_of_the_agent_and_of_kubernetes_are_known(self) -> None:
        names = (
            "HOST_SIZE DISK_DIR PORT SERVICE_HOST SERVICE_PORT SERVICE_PORT_HTTP PORT_80_TCP_ADDR"
            " AGENT_SERVICE_HOST AGENT_PORT AGENT_PORT_9100_TCP LOOKUP_WAIT_MS"
        )
        with self.assertNoLogs("blockyard.settings"):
            Settings.read({}, {f"BLOCKYARD_{name}": "1" for name in names.split()})

    def test_every_setting_has_an_environment_variable(self) -> None:
        words = {str: "/text", int: "7", bool: "false"}
        for name, default in Settings().__dict__.items():
            word = {"log_level": "debug", "kv_layout": "BLNHC"}.get(name, words[type(default)])
            with self.subTest(name):
                settings = Settings.read({}, {f"BLOCKYARD_{name.upper()}": word})
                self.assertNotEqual(
                    str(getattr(settings, name)), str(default) if word != "false" else "True"
                )

    def test_an_empty_variable_is_as_none(self) -> None:
        self.assertEqual(Settings.read({}, {"BLOCKYARD_SOCKET": ""}), Settings())

    def test_numbers_may_be_strings_and_hexadecimal(self) -> None:
        self.assertEqual(Settings.read({"worker_id": "0xff"}, {}).worker_id, 255)
        self.assertEqual(Settings.read({"worker_id": 2**64 - 1}, {}).worker_id, 2**64 - 1)

    def test_flags_as_people_write_them(self) -> None:
        for word in ("1", "true", "Yes", "on", True):
            self.assertTrue(Settings.read({"enabled": word}, {}).enabled)
        for word in ("0", "False", "no", "OFF", False):
            self.assertFalse(Settings.read({"enabled": word}, {}).enabled)


class Refusing(unittest.TestCase):
    def refused(self, extra: dict, *words: str) -> None:
        with self.assertRaises(SettingsError) as caught:
            Settings.read(extra, {})
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_an_unknown_key_names_itself_and_the_known_ones(self) -> None:
        self.refused({"sokcet": "/x"}, "sokcet", "socket", "min_load_blocks")

    def test_values_outside_their_range_name_it(self) -> None:
        self.refused({"min_load_blocks": -1}, "min_load_blocks", "-1", "0..")
        self.refused({"worker_id": 2**64}, "worker_id")
        self.refused({"lookup_wait_ms": -1}, "lookup_wait_ms", "0..60000")
        self.refused({"lookup_wait_ms": 1.5}, "whole number")
        self.refused({"lookup_wait_ms": True}, "whole number")
        self.refused({"enabled": "perhaps"}, "enabled", "true or false")
        self.refused({"log_level": "loud"}, "log_level", "debug")
        self.refused({"kv_layout": "NHD"}, "kv_layout", "NHD", "block-first, BLHNC, BLNHC")
        self.refused({"kv_layout": ["BLHNC"]}, "kv_layout")
        self.refused({"weights": 5}, "weights", "string")

    def test_a_socket_that_the_kernel_cannot_name(self) -> None:
        self.refused({"socket": "relative.sock"}, "absolute")
        self.refused({"socket": "/" + "x" * 107}, "1..107")
        self.refused({"socket": ""}, "1..107")

    def test_a_bad_variable_is_named(self) -> None:
        with self.assertRaisesRegex(SettingsError, "BLOCKYARD_STORE"):
            Settings.read({}, {"BLOCKYARD_STORE": "maybe"})


if __name__ == "__main__":
    unittest.main()
