"""Published lists of labelled images, by fingerprint. The lists themselves are not kept here."""

KNOWN: dict[str, str] = {
    "325a965b6206ac6e9c4c86961d5f4d9f1aff9c361c42dc79719ca85de7e64cc6": "VOC 2012 original, 92 (U2PL, UniMatch)",
    "3b208061a59a42b4954b136dc46b00f263178ebf25ead1164eb3509ab6657ce1": "VOC 2012 original, 183 (U2PL, UniMatch)",
    "ea8aa0b2ceedf56b536241b16b57fadfd9c0c8301bd93f7c9b7ad6df2ffc4c26": "VOC 2012 original, 366 (U2PL)",
    "d356a23daa743733be4afc4b4e5ce286ff4ad35b00a442266ea721713c78b219": "Cityscapes 1/30, 100 (UniMatch)",
}
